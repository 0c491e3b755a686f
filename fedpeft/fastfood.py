"""Fastfood: a random projection to many numbers in O(n log n) (Le, Sarlos and Smola 2013).

One block maps n = 2^k numbers to n: H G Pi H B / sqrt(sum of G^2), with B random signs, Pi a
permutation, G normal, H the Hadamard matrix (equation 7; without S, as Li et al. 2018,
arXiv 1804.08838, and Aghajanyan et al. 2021 use it). More rows than n are further independent
blocks (section 4.1); fewer columns are filled up with zeros. Entries have unit variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.operators import PIECE, Operator
from fedpeft.projection import Stream, table


@dataclass(frozen=True)
class Fastfood(Stream):
    """A structured matrix [rows, columns] whose blocks are n by n."""

    @property
    def size(self) -> int:
        """n, the power of two that holds all columns."""
        return 1 << (self.columns - 1).bit_length()

    @property
    def blocks(self) -> int:
        """How many blocks make up the rows."""
        return -(-self.rows // self.size)

    def signs(self, start: int, stop: int) -> np.ndarray:
        """Return B of some blocks, float32 [stop - start, n], each entry 1 or -1."""
        bits = self._samples(start, stop, "/signs") >> 15
        return 1 - 2 * bits.astype(np.float32)

    def order(self, start: int, stop: int) -> np.ndarray:
        """Return Pi of some blocks: where each number comes from, int64 [stop - start, n]."""
        pairs = self._samples(2 * start, 2 * stop, "/order").astype(np.uint32)
        pairs = pairs.reshape(stop - start, -1, 2)
        return (pairs[..., 0] + (pairs[..., 1] << 16)).argsort(axis=1, kind="stable")

    def gains(self, start: int, stop: int) -> np.ndarray:
        """Return G / sqrt(sum of G^2) of some blocks, float32 [stop - start, n]."""
        normal = table("normal")[self._samples(start, stop, "/gains")]
        length = np.sqrt((normal.astype(np.float64) ** 2).sum(1, keepdims=True))
        return (normal / length).astype(np.float32)  # not the last bits of a sum

    def _samples(self, start: int, stop: int, part: str) -> np.ndarray:
        words = self.words(start * self.size, (stop - start) * self.size, part)
        return words.reshape(stop - start, self.size)

    def beginning(self) -> bytes:
        """See Stream: the first block of each stream."""
        return b"".join(made(0, 1).tobytes() for made in (self.signs, self.order, self.gains))


class Transform(Operator):
    """Fastfood on tensors; a piece is a number of blocks."""

    _projection: Fastfood

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        size = self._projection.size
        padded = functional.pad(z, (0, size - self.columns))[..., None, :]  # [..., 1, n]
        parts = []
        for signs, origin, _, gains in self._pieces():
            mixed = hadamard(padded * signs).flatten(-2).index_select(-1, origin)
            parts.append(hadamard(mixed.unflatten(-1, (-1, size)) * gains).flatten(-2))
        return torch.cat(parts, dim=-1)[..., : self.rows]

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator; H is symmetric."""
        size, blocks = self._projection.size, self._projection.blocks
        padded = functional.pad(gradient, (0, blocks * size - self.rows))
        total, start = gradient.new_zeros((*gradient.shape[:-1], size)), 0
        for signs, _, target, gains in self._pieces():
            part = padded[..., start : start + signs.numel()].unflatten(-1, (-1, size))
            mixed = (hadamard(part) * gains).flatten(-2).index_select(-1, target)
            total = total + (hadamard(mixed.unflatten(-1, (-1, size))) * signs).sum(-2)
            start += signs.numel()
        return total[..., : self.columns]

    def _make(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield signs [b, n], origin and target of the permutation [b * n], gains [b, n]."""
        made, step = self._projection, max(1, PIECE // self._projection.size)
        for start in range(0, made.blocks, step):
            stop = min(start + step, made.blocks)
            origin = made.order(start, stop)
            offsets = np.arange(stop - start)[:, None] * made.size
            flat = (torch.from_numpy(order + offsets) for order in (origin, origin.argsort(axis=1)))
            origin_flat, target_flat = (index.flatten().to(self._device) for index in flat)
            signs, gains = made.signs(start, stop), made.gains(start, stop)
            yield self._tensor(signs), origin_flat, target_flat, self._tensor(gains)


def hadamard(x: Tensor) -> Tensor:
    """Return H x along the last axis, [..., n] with n a power of two; H is not normalised.

    H of n = a b is the Kronecker product of H of a and H of b, so two small matrix products do
    what log2(n) passes of butterflies would, with the same numbers up to rounding.
    """
    size = x.shape[-1]
    left = 1 << (size.bit_length() - 1) // 2
    square = x.unflatten(-1, (left, size // left))
    one, two = (_matrix(side, x.dtype, x.device) for side in (left, size // left))
    return (one @ square @ two).flatten(-2)


def _matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the Hadamard matrix [size, size] of Sylvester's construction."""
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
