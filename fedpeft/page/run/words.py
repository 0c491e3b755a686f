"""How to repeat a run, and how to use its result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpeft.runs.folder import ROSTER
from fedpeft.runs.vectorfile import EXPERIMENT


def how_to_repeat(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"about", "commands"}``: what repeats a run."""
    versions = result.get("versions") or {}
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    with_versions = f" with {programs}" if programs else ""
    if (path / ROSTER).exists():
        return {
            "about": f"This run was a deployment: only its nodes have the data. It ran"
            f"{with_versions}. The same settings run again at a server with",
            "commands": [f"fedpeft run {_quoted(path / EXPERIMENT)} --on SERVER --out NEW"],
        }
    return {
        "about": f"The settings determine the run: the seed fixes every random number except "
        f"secret noise. The bits of the result are the same{with_versions}, on the same kind of "
        f"processor and with the same number of threads.",
        "commands": [f"fedpeft simulate {_quoted(path / EXPERIMENT)} --out NEW"],
    }


def how_to_use(path: Path, settings: Mapping[str, Any], finished: bool) -> dict[str, Any]:
    """Return ``{"about", "commands"}``: what loads the result of a run."""
    if not finished:
        return {"about": "The run has no result yet.", "commands": []}
    if settings.get("federation.personal"):
        about = "Some parameters stay at the clients (federation.personal): only they can use it."
        return {"about": about, "commands": []}
    folder = _quoted(path)
    return {
        "about": "The task vector, with the digests of the backbone that it belongs to, is in "
        "vector.safetensors.",
        "commands": [
            f"fedpeft predict {folder} NEW.tsv",
            f"fedpeft export {folder} --format hf",
        ],
    }


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
