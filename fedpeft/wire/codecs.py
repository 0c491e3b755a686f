"""Codecs of task vectors: the bytes in which a vector is sent.

A number format sends the vector itself. EDEN (``fedpeft.wire.eden``) sends a change in a few bits
per number; ``fedpeft.transfer`` chooses between them.
"""

from __future__ import annotations

import numpy as np

from fedpeft.wire import eden

#: Bytes per number of each number format.
FORMATS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_EXPECTED = f"{', '.join(FORMATS)}, eden1 to eden8 (bits per number), or eden0.02 to eden0.99"


def check_codec(name: str) -> str:
    """Return the name of a codec in its shortest form, such as "eden0.5" for "eden0.50".

    Raises:
        ValueError: there is no such codec.
    """
    rate = eden.rate_of(name)
    if rate is None and name not in FORMATS:
        raise ValueError(_EXPECTED)
    return name if rate is None else f"eden{rate:g}"


def encoded_size(size: int, codec: str) -> int:
    """Return the number of bytes of an encoded vector of ``size`` numbers."""
    return size * FORMATS[codec] if codec in FORMATS else eden.encoded_size(size, codec)


def encode(vector: np.ndarray, codec: str) -> bytes:
    """Return the bytes of a vector [P]: its numbers in the format ``codec``, little-endian.

    Numbers beyond the range of ``codec`` become infinite.
    """
    with np.errstate(over="ignore"):
        if codec == "bfloat16":
            return _to_bfloat16(vector.astype("<f4")).tobytes()
        return vector.astype(np.dtype(codec).newbyteorder("<"), copy=False).tobytes()


def decode(data: bytes, codec: str, size: int, dtype: str = "float32") -> np.ndarray:
    """Return the vector [P] of received bytes in ``dtype``; it may share their memory.

    Args:
        data: the received bytes, which are not trusted.
        codec: format in which the numbers were sent.
        size: expected length P.
        dtype: of the result.

    Raises:
        ValueError: wrong length, or a number that is not finite.
    """
    expected = encoded_size(size, codec)
    if len(data) != expected:
        raise ValueError(f"vector has {len(data)} bytes, expected {expected} ({size} x {codec})")
    if codec == "bfloat16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, np.dtype(codec).newbyteorder("<"))
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
