"""Codecs of task vectors: the bytes in which a vector is sent."""

from __future__ import annotations

import numpy as np


def encode(vector: np.ndarray, codec: str) -> bytes:
    """Return the bytes of a task vector [P]: its numbers in the dtype ``codec``, little-endian.

    Numbers beyond the range of ``codec`` become infinite.
    """
    with np.errstate(over="ignore"):
        return vector.astype(np.dtype(codec).newbyteorder("<"), copy=False).tobytes()


def decode(data: bytes, codec: str, size: int, dtype: str = "float32") -> np.ndarray:
    """Return the task vector [P] of received bytes in ``dtype``; it may share their memory.

    Args:
        data: the received bytes, which are not trusted.
        codec: dtype in which the numbers were sent.
        size: expected length P.
        dtype: of the result.

    Raises:
        ValueError: wrong length, or a number that is not finite.
    """
    sent = np.dtype(codec).newbyteorder("<")
    if len(data) != size * sent.itemsize:
        raise ValueError(
            f"vector has {len(data)} bytes, expected {size * sent.itemsize} ({size} x {codec})"
        )
    with np.errstate(over="ignore"):  # a float64 may be beyond float32
        vector = np.frombuffer(data, sent).astype(dtype)  # a copy: torch wants writable memory
    bad = np.count_nonzero(~np.isfinite(vector))
    if bad:
        raise ValueError(f"{bad} of {size} numbers are NaN or infinite")
    return vector
