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

_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def made_to_read(name: str) -> Literal["mean", "unit", "cls"] | None:
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
    chosen = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        return None
    if _POOLINGS[chosen[0]] == "cls":
        return "cls"
    return "unit" if "Normalize" in kinds else "mean"


def _read(path: Path, missing: Any) -> Any:
    """Return the content of a JSON file; ``missing`` if there is none, or it is another kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return missing
    return content if isinstance(content, type(missing)) else missing
