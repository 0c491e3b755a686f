"""The file of a run's task vector: its numbers and the description needed to use them.

Separate from ``trained``, so that commands that only copy or watch runs do not load torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError

EXPERIMENT = "experiment.toml"  # file names in a run's folder
VECTOR = "vector.safetensors"
RESULT = "result.json"
IDENTITY = "identity.json"
_KEY = "fedpeft"  # one key: the order of several is not fixed, but equal runs must give equal files


def vector_bytes(vector: np.ndarray, about: dict[str, Any]) -> bytes:
    """Return the content of the file of a task vector [P], with its description as JSON."""
    from safetensors.numpy import save

    described = {**about, "vector": vector_digest(vector)}
    return save({"vector": vector}, {_KEY: json.dumps(described, sort_keys=True)})


def vector_digest(vector: np.ndarray) -> str:
    """Return the SHA-256 of a task vector's bytes in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()


def read_vector(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the task vector [P] of a file and its description, both checked.

    Raises:
        UserError: the file is missing, or ``vector_bytes`` did not make it.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            vector = file.get_tensor("vector")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"'{path}' is not a fedpeft vector ({reason}); expected the {VECTOR} of a run"
        ) from None
    if not isinstance(about, dict):
        raise UserError(f"'{path}' is not a fedpeft vector: its description is not a table")
    if about.get("vector") != vector_digest(vector):
        raise UserError(
            f"'{path}': its numbers differ from those that were written; use the original"
        )
    return vector, about
