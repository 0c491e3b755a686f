"""Number formats: the numbers of a vector as such, 2 to 8 bytes each."""

from __future__ import annotations

import numpy as np

#: Bytes per number of each number format.
FORMATS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
#: Formats in which an update holds the vector itself; in the shorter ones, the change.
WHOLE = ("float32", "float64")


def encode(vector: np.ndarray, name: str) -> bytes:
    """Return the bytes of a vector [P]: its numbers in the format ``name``, little-endian.

    Numbers beyond the range of ``name`` become infinite.
    """
    with np.errstate(over="ignore"):
        if name == "bfloat16":
            return _to_bfloat16(vector.astype("<f4")).tobytes()
        return vector.astype(np.dtype(name).newbyteorder("<"), copy=False).tobytes()


def decode(data: bytes, name: str, size: int, dtype: str = "float32") -> np.ndarray:
    """Return the vector [P] of received bytes as a new array of ``dtype``.

    Args:
        data: the received bytes, which are not trusted.
        name: format in which the numbers were sent.
        size: expected length P.
        dtype: of the result.

    Raises:
        ValueError: wrong length, or a number that is not finite.
    """
    expected = size * FORMATS[name]
    if len(data) != expected:
        raise ValueError(f"vector has {len(data)} bytes, expected {expected} ({size} x {name})")
    if name == "bfloat16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, np.dtype(name).newbyteorder("<"))
    return finite(numbers, dtype)


def finite(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return numbers [P] in another dtype, as a copy: torch wants writable memory.

    Raises:
        ValueError: a number is not finite in ``dtype``.
    """
    with np.errstate(over="ignore"):  # a float64 may be beyond float32
        vector = numbers.astype(dtype)
    bad = np.count_nonzero(~np.isfinite(vector))
    if bad:
        raise ValueError(f"{bad} of {len(vector)} numbers are NaN or infinite")
    return vector


def _to_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even, uint16."""
    bits = numbers.view("<u4")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype("<u4")) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype("<u2")
