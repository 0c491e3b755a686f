"""The file of a task vector, as a run leaves it: the numbers, and all that is needed to use them.

Apart from ``trained``, so that who only copies or watches runs loads no torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError

EXPERIMENT = "experiment.toml"  # in a run's folder
VECTOR = "vector.safetensors"
_KEY = "fedpeft"  # one key: several come in no fixed order, and equal runs make equal files


def vector_bytes(vector: np.ndarray, about: dict[str, Any]) -> bytes:
    """Return the content of a vector's file: the task vector [P] and its description as JSON."""
    from safetensors.numpy import save

    described = {**about, "vector": vector_digest(vector)}
    return save({"vector": vector}, {_KEY: json.dumps(described, sort_keys=True)})


def vector_digest(vector: np.ndarray) -> str:
    """Return SHA-256 over a task vector's bytes, as hexadecimal text."""
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()


def read_vector(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the task vector [P] of a file and its description; nothing in it is trusted.

    Raises:
        UserError: no such file, or none that ``vector_bytes`` made.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            vector = file.get_tensor("vector")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"'{path}' is no fedpeft vector ({reason}); expected the {VECTOR} of a run"
        ) from None
    if not isinstance(about, dict):
        raise UserError(f"'{path}' is no fedpeft vector: its description is no table")
    if about.get("vector") != vector_digest(vector):
        raise UserError(f"'{path}': its numbers are not those that were written; use the original")
    return vector, about
