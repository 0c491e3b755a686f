"""The runs of a server as an operator sees them: how far, how good, how many bytes, which nodes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.vectorfile import EXPERIMENT
from server.deployed import ENDED, RUNS
from server.ledger import total_bytes
from server.runfolder import RESULT, ROSTER, ROUNDS, RunFolder


@dataclass(frozen=True)
class Run:
    """What a run's folder says.

    Attributes:
        name: of the folder.
        state: "finished", "failed", "stopped" (by who runs it, or with the server; resumable),
            "unfinished" (going on, or resumable), or "damaged".
        reason: why, in the server's own words, where it failed.
        changed: when the folder last did, in seconds since 1970.
        rounds: how many were wanted.
        last: the line of the last round in rounds.jsonl; empty before the first.
        score: the last one measured.
        bytes: of all messages, ``{"train" | "evaluate" | "handshake": {"up", "down"}}``.
        nodes: entries of roster.json: client, node_id, name, last_seen, epsilon, ...
    """

    name: str
    state: str
    reason: str = ""
    changed: float = 0.0
    rounds: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    score: float | None = None
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    nodes: Sequence[dict[str, Any]] = ()


def run_folders(state: Path) -> list[Path]:
    """Return the folders of a server's runs, the one that changed last at the end."""
    if not (state / RUNS).is_dir():
        return []
    found = [f for f in (state / RUNS).iterdir() if (f / EXPERIMENT).is_file()]
    return sorted(found, key=lambda folder: (folder.stat().st_mtime, folder.name))


def is_over(folder: Path) -> bool:
    """Return whether a run has ended, well or not."""
    return (folder / RESULT).exists() or (folder / ENDED).exists()


def read_run(folder: Path) -> Run:
    """Return what a run's folder says; a damaged one is said to be so."""
    try:
        changed = folder.stat().st_mtime
        settings = tomllib.loads((folder / EXPERIMENT).read_text(encoding="utf-8"))
        rounds = int(settings["federation"]["rounds"])
        ended = _json(folder / ENDED, {"ok": True, "reason": ""})
        nodes = _json(folder / ROSTER, {"nodes": []})["nodes"]
        lines = RunFolder(folder).rounds()
        last = lines[-1] if lines else {}
        scores = [line["score"] for line in lines if line["score"] is not None]
        score = scores[-1] if scores else None
        sent, reason = _sent(lines), str(ended["reason"])
        state = _state(folder, ended)
        return Run(folder.name, state, reason, changed, rounds, last, score, sent, nodes)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return Run(folder.name, "damaged")


def _state(folder: Path, ended: dict[str, Any]) -> str:
    if ended.get("stopped"):
        return "stopped"
    if not ended["ok"]:
        return "failed"
    return "finished" if (folder / RESULT).exists() else "unfinished"


def signature(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes whenever ``read_run`` would find something else."""
    found = []
    for name in (EXPERIMENT, ROUNDS, RESULT, ENDED, ROSTER):
        with suppress(FileNotFoundError):
            about = (folder / name).stat()
            found.append((about.st_ino, about.st_mtime_ns, about.st_size))
    return tuple(found)


def sent_by_client(folder: Path) -> dict[int, dict[str, int]]:
    """Return the bytes of all messages to and from each client: ``{client: {"up", "down"}}``.

    Raises:
        UserError: bytes.jsonl is damaged.
    """
    found: dict[int, dict[str, int]] = {}
    for line in RunFolder(folder).sent():
        sums = found.setdefault(line["client"], {"up": 0, "down": 0})
        for way in sums:
            sums[way] += line.get(way, {"message": 0})["message"]
    return found


def _sent(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    total = total_bytes(lines)
    kinds = {"train": total, "evaluate": total["evaluate"], "handshake": total["handshake"]}
    return {
        kind: {way: sizes[way]["message"] for way in ("up", "down")}
        for kind, sizes in kinds.items()
    }


def _json(path: Path, absent: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return absent
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
