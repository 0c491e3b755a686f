"""Encoders of sentences: how the makers of a backbone read it.

A folder of sentence-transformers names its steps in ``modules.json``: the transformer, a pooling,
and often a scaling to length 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fedpeft.backbones.checkpoints import checkpoint
from fedpeft.backbones.known import KNOWN_SHAPES

#: Pooling in a folder's configuration -> representation. Newer folders have ``pooling_mode``,
#: older ones a flag for each mode.
_POOLINGS: dict[str, Literal["mean", "cls", "last"]] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "cls",
    "cls_token": "cls",
    "lasttoken": "last",
}


def made_to_read(name: str) -> Literal["mean", "unit", "cls", "last"] | None:
    """Return the representation that a backbone's files ask for; None if they ask for none here.

    Backbones of the papers have no such files, and are not looked up on the hub.

    Raises:
        UserError: no such backbone, or the hub cannot be reached.
    """
    if name in KNOWN_SHAPES and name != "minilm":
        return None
    folder = checkpoint(name)
    modules = _read(folder / "modules.json", [])
    kinds = {str(module.get("type", "")).rsplit(".", 1)[-1]: module for module in modules}
    if "Pooling" not in kinds or kinds.keys() - {"Transformer", "Pooling", "Normalize"}:
        return None
    pooling = _read(folder / str(kinds["Pooling"].get("path", "")) / "config.json", {})
    flags = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
    modes = [key.removeprefix("pooling_mode_") for key in flags]
    modes += [str(pooling["pooling_mode"])] if "pooling_mode" in pooling else []
    representation = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    return "unit" if representation == "mean" and "Normalize" in kinds else representation


def _read(path: Path, missing: Any) -> Any:
    """Return the content of a JSON file; ``missing`` if there is none, or it is another kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return missing
    return content if isinstance(content, type(missing)) else missing
