"""Random rotations that make the numbers of any vector look normal.

Two orthonormal cosine transforms, each after random signs. The rotation is not uniform over all
rotations, so what is rounded after it has a bias, but one too small to measure; with one transform
it is large for vectors with few nonzero numbers. A cosine transform has any length: no padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

#: Numbers rotated together. A block fits into a processor's cache, which halves the time of a long
#: vector, and bounds the memory.
BLOCK = 1 << 15
_SPLIT = 1 << 13  # a shorter block takes two milliseconds at most, whatever its length


class Rotation:
    """A random rotation of a block [length]."""

    def __init__(self, length: int, generator: np.random.Generator):
        # Philox's words themselves: numpy may change how it makes other numbers of them.
        words = np.asarray(generator.bit_generator.random_raw(-(-2 * length // 64)), "<u8")
        bits = np.unpackbits(words.view(np.uint8), count=2 * length, bitorder="little")
        self._first, self._second = 1.0 - 2.0 * bits.reshape(2, length)

    def apply(self, block: np.ndarray) -> np.ndarray:
        """Return the rotated block [length]."""
        from scipy.fft import dct

        turned = dct(self._first * block, norm="ortho", overwrite_x=True)
        turned *= self._second
        return np.asarray(dct(turned, norm="ortho", overwrite_x=True))

    def undo(self, rotated: np.ndarray) -> np.ndarray:
        """Return the block [length] of a rotated one, which may be overwritten."""
        from scipy.fft import idct

        turned = idct(rotated, norm="ortho", overwrite_x=True)
        turned *= self._second
        return np.asarray(self._first * idct(turned, norm="ortho", overwrite_x=True))


@lru_cache(maxsize=64)
def block_lengths(size: int) -> tuple[int, ...]:
    """Return the lengths of the blocks of a vector of ``size`` numbers."""
    whole, rest = divmod(size, BLOCK)
    return (BLOCK,) * whole + (_parts(rest) if rest else ())


def blocks(array: np.ndarray, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the parts of an array with these lengths."""
    start = 0
    for length in lengths:
        yield array[start : start + length]
        start += length


def _parts(length: int) -> tuple[int, ...]:
    """Return a length whose transform is fast, or the evenest two of them that add up to it.

    A transform of a length with a large prime factor takes ten times as long; one more scale is
    cheaper than padding.
    """
    from scipy.fft import next_fast_len

    if length > _SPLIT and next_fast_len(length) != length:
        for less in range(length // 2, _SPLIT // 2, -1):
            if next_fast_len(less) == less and next_fast_len(length - less) == length - less:
                return less, length - less
    return (length,)
