"""Sums modulo 2^w: masks, packing, and the width that holds a sum.

Numbers are uint64; a mask is w bits of each number of a ChaCha20 stream, in the smallest type that
holds w bits. The addition of a uniform mask modulo 2^w leaves a uniform number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

_ZERO = bytes(16)  # ChaCha20's counter and nonce: a seed is used for one stream


def width(clients: int, levels: int) -> int:
    """Return the bits w of a sum of ``clients`` numbers from 0 to ``levels`` - 1."""
    return max(1, (clients * (levels - 1)).bit_length())


def octets(seed: bytes, size: int) -> bytes:
    """Return ``size`` bytes of the stream of a seed of 32 bytes that is used for nothing else."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(seed, _ZERO), mode=None).encryptor().update(bytes(size))


def stream(seed: bytes, size: int, bits: int) -> np.ndarray:
    """Return uniform numbers [size] of a seed, see ``octets``."""
    kind = kind_of(bits)
    numbers = np.frombuffer(octets(seed, size * kind.itemsize), kind)
    return numbers.astype(np.uint64) & _ones(bits)


def kind_of(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type of numbers of ``bits``, in the byte order of all machines."""
    return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if bits <= 8 * size))


def total(
    parts: Sequence[tuple[int, int]], *, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()
) -> list[np.ndarray]:
    """Return the sums of the masks of the seeds ``plus``, less those of ``minus``.

    Args:
        parts: size and bits of each part of a mask, which follow each other in a seed's stream.
        plus: seeds, see ``octets``.
        minus: others.

    Returns:
        The sum [size] of each part.
    """
    kinds = [kind_of(bits) for _, bits in parts]
    sums = [np.zeros(size, kind) for (size, _), kind in zip(parts, kinds, strict=True)]
    ends = np.cumsum([each.nbytes for each in sums]).tolist()
    starts = [0, *ends[:-1]]
    for change, seeds in ((np.add, plus), (np.subtract, minus)):
        for seed in seeds:
            data = octets(seed, ends[-1])
            for each, kind, start in zip(sums, kinds, starts, strict=True):
                change(each, np.frombuffer(data, kind, len(each), start), out=each)
    return [reduced(each, bits) for each, (_, bits) in zip(sums, parts, strict=True)]


def reduced(values: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers modulo 2^bits."""
    return values.astype(np.uint64) & _ones(bits)


def signed(values: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers modulo 2^bits as those nearest to zero, from -2^(bits - 1), int64."""
    half = np.int64(1 << (bits - 1))
    return (reduced(values, bits).astype(np.int64) ^ half) - half


def packed_size(size: int, bits: int) -> int:
    """Return the bytes of ``size`` numbers."""
    return (size * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """Return the ``bits`` lowest bits of numbers [n], lowest bit first."""
    octets = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    single = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
    return np.packbits(single.reshape(-1), bitorder="little").tobytes()


def unpack(data: bytes, size: int, bits: int) -> np.ndarray:
    """Return the numbers [size] of received bytes, uint64.

    Raises:
        ValueError: wrong length.
    """
    expected = packed_size(size, bits)
    if len(data) != expected:
        raise ValueError(f"masked numbers have {len(data)} bytes, expected {expected}")
    single = np.unpackbits(np.frombuffer(data, np.uint8), count=size * bits, bitorder="little")
    octets = np.zeros((size, 8), np.uint8)
    octets[:, : (bits + 7) // 8] = np.packbits(
        single.reshape(size, bits), axis=1, bitorder="little"
    )
    return octets.reshape(-1).view("<u8").astype(np.uint64)


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)
