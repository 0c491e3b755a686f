"""Operators that apply projections to tensors: stored, or regenerated in every pass.

Both modes use the same pieces in the same order, so their results are bit-identical;
``regenerated`` holds one piece at a time (a ``Selection`` is one piece). Pieces are generated on
the CPU and moved to the device. ``fused`` is an exception: on CUDA the entries of a dense matrix
are bit-identical, and sums are not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.projection import Projection, Selection, Stream, threads
from fedpeft.projection.fastfood import Fastfood

Mode = Literal["stored", "regenerated"]

PIECE = 1 << 22  # entries of a piece: 16 MB


class Operator(ABC):
    """A fixed linear map, [..., columns] -> [..., rows]; gradients flow through it."""

    def __init__(self, projection: Stream, device: torch.device, dtype: torch.dtype, mode: Mode):
        self.rows, self.columns = projection.rows, projection.columns
        self.dtype, self._projection, self._device = dtype, projection, device
        self._mode = mode
        self._kept = list(self._make()) if mode == "stored" else None

    def __call__(self, z: Tensor) -> Tensor:
        """Return the map of ``z``, [..., columns] -> [..., rows]."""
        return _Apply.apply(z, self, False)

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Apply the map, without autograd."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor:
        """Apply the transposed map, [..., rows] -> [..., columns], without autograd."""

    def matrix(self) -> Tensor:
        """Return the dense matrix, [rows, columns]."""
        return self(torch.eye(self.columns, dtype=self.dtype, device=self._device)).T

    @abstractmethod
    def _make(self) -> Iterator[Any]:
        """Generate the pieces."""

    def _pieces(self) -> Iterator[Any]:
        return iter(self._kept) if self._kept is not None else self._make()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, self.dtype)


class _Apply(torch.autograd.Function):
    """The map or its transpose, each the gradient of the other. Saves only the operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: Operator, transposed: bool) -> Tensor:
        # With ``setup_context``, PyTorch reads the signature of this function in every call.
        ctx.dtype, ctx.operator, ctx.transposed = x.dtype, operator, transposed
        return operator.backward(x) if transposed else operator.forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Under autocast the forward pass has lower precision than this pass.
        gradient = gradient.to(ctx.operator.dtype)
        pulled = _Apply.apply(gradient, ctx.operator, not ctx.transposed)
        return pulled.to(ctx.dtype), None, None


class Dense(Operator):
    """A dense matrix whose pieces are ranges of columns."""

    _projection: Projection

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        total: Tensor | None = None
        for start, piece in self._pieces():
            part = z[..., start : start + len(piece)] @ piece
            total = part if total is None else total + part
        assert total is not None, "a projection has at least one column"
        return total

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator."""
        return torch.cat([gradient @ piece.T for _, piece in self._pieces()], dim=-1)

    def _make(self) -> Iterator[tuple[int, Tensor]]:
        step = max(16, PIECE // self.rows // 16 * 16)  # same alignment for all pieces
        for start in range(0, self.columns, step):
            count = min(step, self.columns - start)
            # A regenerated piece overwrites the last one, which autograd does not need: freed
            # blocks of this size fragment the heap. Memory of numpy, because torch's is aligned
            # and fragments too.
            if start == 0 or self._mode == "stored":
                room = np.empty((count, self.rows), np.float32)
            threads.fill(self._projection, start, room[:count])
            yield start, self._tensor(room[:count])


class Select(Operator):
    """One scaled column for every row."""

    _projection: Selection

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        ranks, scale = next(self._pieces())
        return z.index_select(-1, ranks % self.columns) * scale

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator."""
        ranks, scale = next(self._pieces())
        # Not ``index_add``, which adds in any order on a GPU.
        ordered = (gradient * scale).index_select(-1, _inverse(ranks))
        filled = functional.pad(ordered, (0, -self.rows % self.columns))
        return filled.unflatten(-1, (-1, self.columns)).sum(-2)

    def _make(self) -> Iterator[tuple[Tensor, Tensor]]:
        ranks = self._projection.ranks()
        picked = ranks % self.columns
        often = np.bincount(picked, minlength=self.columns)
        yield torch.from_numpy(ranks).to(self._device), self._tensor(1 / np.sqrt(often[picked]))


class Transform(Operator):
    """Fastfood; a piece is a range of blocks."""

    _projection: Fastfood

    def __init__(self, projection: Fastfood, device: torch.device, dtype: torch.dtype, mode: Mode):
        super().__init__(projection, device, dtype, mode)
        self._sides = hadamard_sides(projection.size, device, dtype)

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        size = self._projection.size
        padded = functional.pad(z, (0, size - self.columns))[..., None, :]  # [..., 1, n]
        parts = []
        for signs, origin, gains in self._pieces():
            mixed = hadamard(padded * signs, self._sides).flatten(-2).index_select(-1, origin)
            parts.append(hadamard(mixed.unflatten(-1, (-1, size)) * gains, self._sides).flatten(-2))
        return torch.cat(parts, dim=-1)[..., : self.rows]

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator; H is symmetric, and a permutation's transpose is its inverse."""
        size, blocks = self._projection.size, self._projection.blocks
        padded = functional.pad(gradient, (0, blocks * size - self.rows))
        total, start = gradient.new_zeros((*gradient.shape[:-1], size)), 0
        for signs, origin, gains in self._pieces():
            part = padded[..., start : start + signs.numel()].unflatten(-1, (-1, size))
            mixed = (hadamard(part, self._sides) * gains).flatten(-2)
            back = mixed.index_select(-1, _inverse(origin))
            total = total + (hadamard(back.unflatten(-1, (-1, size)), self._sides) * signs).sum(-2)
            start += signs.numel()
        return total[..., : self.columns]

    def _make(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield signs [b, n], origins of the permutation [b * n] and gains [b, n]."""
        fastfood = self._projection
        step = max(1, PIECE // fastfood.size)
        for start in range(0, fastfood.blocks, step):
            stop = min(start + step, fastfood.blocks)
            origin = fastfood.order(start, stop) + np.arange(stop - start)[:, None] * fastfood.size
            yield (
                torch.from_numpy(fastfood.signs(start, stop).astype(np.int8)).to(self._device),
                torch.from_numpy(origin.astype(np.int32)).flatten().to(self._device),
                self._tensor(fastfood.gains(start, stop)),
            )


def _inverse(order: Tensor) -> Tensor:
    """Return the inverse of a permutation [n]; indexing by it is much faster than index_add."""
    inverse = torch.empty_like(order)
    inverse[order.long()] = torch.arange(len(order), dtype=order.dtype, device=order.device)
    return inverse


Sides = tuple[Tensor, Tensor]


def hadamard_sides(size: int, device: torch.device, dtype: torch.dtype) -> Sides:
    """Return Sylvester's Hadamard matrices of sizes a and b, with a b = size, a power of two."""
    left = 1 << (size.bit_length() - 1) // 2

    def matrix(side: int) -> Tensor:
        h = torch.ones(1, 1, dtype=dtype, device=device)
        while len(h) < side:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
        return h

    return matrix(left), matrix(size // left)


def hadamard(x: Tensor, sides: Sides) -> Tensor:
    """Return H x along the last axis, [..., n]; H is not normalized.

    H of n = a b is the Kronecker product of H of a and H of b, so two small matrix products replace
    the log2(n) passes of the fast transform, with the same result up to rounding.
    """
    one, two = sides
    return (one @ x.unflatten(-1, (len(one), len(two))) @ two).flatten(-2)
