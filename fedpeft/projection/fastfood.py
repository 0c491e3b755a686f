"""Fastfood: a random projection to many numbers in O(n log n) (Le, Sarlos and Smola 2013).

One block maps n = 2^k numbers to n: H G Pi H B / sqrt(sum of G^2), with B random signs, Pi a
permutation, G normal, H the Hadamard matrix (equation 7; without S, as Li et al. 2018,
arXiv 1804.08838, and Aghajanyan et al. 2021 use it). More rows than n are further independent
blocks (section 4.1); fewer columns are padded with zeros. Entries have unit variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.projection import Stream, table

_FIXED = 2.0**32  # fixed-point scale of a square


@dataclass(frozen=True)
class Fastfood(Stream):
    """A structured matrix [rows, columns] whose blocks are n by n."""

    @property
    def size(self) -> int:
        """n, the smallest power of two >= columns."""
        return 1 << (self.columns - 1).bit_length()

    @property
    def blocks(self) -> int:
        """Number of blocks that cover the rows."""
        return -(-self.rows // self.size)

    def signs(self, start: int, stop: int) -> np.ndarray:
        """Return B of some blocks, float32 [stop - start, n], each entry 1 or -1."""
        bits = self._samples(start, stop, "/signs") >> 15
        return 1 - 2 * bits.astype(np.float32)

    def order(self, start: int, stop: int) -> np.ndarray:
        """Return Pi of some blocks: the source of each number, int64 [stop - start, n]."""
        pairs = self._samples(2 * start, 2 * stop, "/order").astype(np.uint32)
        pairs = pairs.reshape(stop - start, -1, 2)
        return (pairs[..., 0] + (pairs[..., 1] << 16)).argsort(axis=1, kind="stable")

    def gains(self, start: int, stop: int) -> np.ndarray:
        """Return G / sqrt(sum of G^2) of some blocks, float32 [stop - start, n]."""
        normal = table("normal")[self._samples(start, stop, "/gains")]
        # Integers: a sum of floats depends on its order, hence on the library's version.
        squares = np.rint(normal.astype(np.float64) ** 2 * _FIXED).astype(np.int64)
        length = np.sqrt(squares.sum(1, keepdims=True) / _FIXED)
        return (normal / length).astype(np.float32)

    def _samples(self, start: int, stop: int, part: str) -> np.ndarray:
        words = self.words(start * self.size, (stop - start) * self.size, part)
        return words.reshape(stop - start, self.size)

    def beginning(self) -> bytes:
        """See Stream: the first block of each stream."""
        return b"".join(made(0, 1).tobytes() for made in (self.signs, self.order, self.gains))
