"""What a run in this process left in its folder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from fedpeft.runs.folder import RunFolder


def final_vector(folder: RunFolder) -> np.ndarray:
    """Return the task vector of a finished run, shape [P]."""
    return load_file(folder.path / "vector.safetensors")["vector"]


def result_of(folder: RunFolder) -> dict[str, Any]:
    """Return the result of a finished run."""
    result: dict[str, Any] = json.loads((folder.path / "result.json").read_text())
    return result
