"""The largest numbers of a vector, with their places (Aji & Heafield 2017, arXiv 1704.05021).

A biased codec, for comparison. What it leaves out is added to the client's next change (error
feedback, Stich et al. 2018, arXiv 1809.07599), so a client has to remember a vector.

The numbers are sent in bfloat16, whose range is that of float32, and the places in ceil(log2 n)
bits each, ascending.
"""

from __future__ import annotations

import numpy as np

from fedpeft.wire import formats

LEAST_SHARE = 0.001


def encoded_size(size: int, share: float) -> int:
    """Return the number of bytes of an encoded vector of ``size`` numbers."""
    count = _count(size, share)
    return 2 * count + (count * _place_bits(size) + 7) // 8


def encode(vector: np.ndarray, share: float) -> bytes:
    """Return the code of a vector [n]: its largest numbers, then their packed places.

    A number that is not finite counts as large, and ``decode`` refuses it.
    """
    count, bits = _count(len(vector), share), _place_bits(len(vector))
    largest = np.argsort(-np.abs(np.nan_to_num(vector, nan=np.inf)), kind="stable")
    places = np.sort(largest[:count])
    single = np.unpackbits(
        places.astype("<u4").view(np.uint8).reshape(count, 4), axis=1, count=bits, bitorder="little"
    )
    packed = np.packbits(single.reshape(-1), bitorder="little").tobytes()
    return formats.encode(vector[places], "bfloat16") + packed


def decode(data: bytes, size: int, share: float) -> np.ndarray:
    """Return the vector [n] of received bytes, float64; the other numbers are zero.

    Args:
        data: the received bytes, which are not trusted.
        size: expected length n.
        share: of the numbers that are sent.

    Raises:
        ValueError: wrong length, a number that is not finite, or places that are not ascending.
    """
    count, bits, expected = _count(size, share), _place_bits(size), encoded_size(size, share)
    if len(data) != expected:
        raise ValueError(
            f"vector has {len(data)} bytes, expected {expected} ({count} of {size} numbers)"
        )
    numbers = formats.decode(data[: 2 * count], "bfloat16", count, "float64")
    packed = np.frombuffer(data, np.uint8, offset=2 * count)
    single = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    padded = np.pad(single, ((0, 0), (0, 32 - bits)))
    places = np.packbits(padded, axis=1, bitorder="little").view("<u4")[:, 0].astype(np.int64)
    if np.any(np.diff(places) <= 0) or places[-1] >= size:
        raise ValueError(f"the places of {count} numbers are not ascending below {size}")
    vector = np.zeros(size)
    vector[places] = numbers
    return vector


def _count(size: int, share: float) -> int:
    """Return how many numbers are sent."""
    return max(1, round(share * size))


def _place_bits(size: int) -> int:
    """Return the bits of a place below ``size``."""
    return max(1, (size - 1).bit_length())
