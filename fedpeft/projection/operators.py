"""Projections at work on tensors: from memory, or made anew in every forward and backward pass.

Both go through the same pieces in the same order, so they give the same numbers to the bit;
``regenerated`` never holds more than a piece (a ``Selection`` is one piece). Pieces are made on the
CPU and moved to the device. The exception is ``fused``: on CUDA the entries of a dense matrix are
the same to the bit, and sums are not.
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
        """The map, without a gradient of its own."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor:
        """The transposed map, [..., rows] -> [..., columns]."""

    def matrix(self) -> Tensor:
        """Return the matrix written out, [rows, columns]."""
        return self(torch.eye(self.columns, dtype=self.dtype, device=self._device)).T

    @abstractmethod
    def _make(self) -> Iterator[Any]:
        """Make the pieces."""

    def _pieces(self) -> Iterator[Any]:
        return iter(self._kept) if self._kept is not None else self._make()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, self.dtype)


class _Apply(torch.autograd.Function):
    """The map or its transpose: each is the other's gradient. Keeps nothing but the operator."""

    @staticmethod
    def forward(x: Tensor, operator: Operator, transposed: bool) -> Tensor:
        return operator.backward(x) if transposed else operator.forward(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Operator, bool], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype
        _, ctx.operator, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Under autocast the forward pass is in lower precision, and this one is not.
        gradient = gradient.to(ctx.operator.dtype)
        found = _Apply.apply(gradient, ctx.operator, not ctx.transposed)
        return found.to(ctx.dtype), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], x: Tensor, operator: Operator, transposed: bool
    ) -> tuple[Tensor, int]:
        # Any leading axes will do, so a mapped one is one more, also for a kernel.
        return _Apply.apply(x.movedim(in_dims[0], 0), operator, transposed), 0


class Dense(Operator):
    """A matrix whose pieces are some of its columns."""

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
        step = max(16, PIECE // self.rows // 16 * 16)  # pieces begin at the same alignment
        for start in range(0, self.columns, step):
            count = min(step, self.columns - start)
            # A piece made anew is written over the last one: freed blocks of this size would
            # scatter over the heap. Autograd sees no piece, so none is needed again. numpy's
            # memory, since torch's is aligned and scatters from pass to pass.
            if start == 0 or self._mode == "stored":
                room = np.empty((count, self.rows), np.float32)
            threads.fill(self._projection, start, room[:count])
            yield start, self._tensor(room[:count])


class Select(Operator):
    """One column, scaled, for every row."""

    _projection: Selection

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        picked, scale = next(self._pieces())
        return z.index_select(-1, picked) * scale

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator."""
        picked, scale = next(self._pieces())
        empty = gradient.new_zeros((*gradient.shape[:-1], self.columns))
        return empty.index_add(-1, picked, gradient * scale)

    def _make(self) -> Iterator[tuple[Tensor, Tensor]]:
        picked = self._projection.picked()
        often = np.bincount(picked, minlength=self.columns)
        yield torch.from_numpy(picked).to(self._device), self._tensor(1 / np.sqrt(often[picked]))


class Transform(Operator):
    """Fastfood on tensors; a piece is a number of blocks."""

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
        """See Operator; H is symmetric, and a permutation's transpose puts back."""
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
        """Yield signs [b, n], the permutation's origins [b * n] and gains [b, n], kept small."""
        made, step = self._projection, max(1, PIECE // self._projection.size)
        for start in range(0, made.blocks, step):
            stop = min(start + step, made.blocks)
            origin = made.order(start, stop) + np.arange(stop - start)[:, None] * made.size
            yield (
                torch.from_numpy(made.signs(start, stop).astype(np.int8)).to(self._device),
                torch.from_numpy(origin.astype(np.int32)).flatten().to(self._device),
                self._tensor(made.gains(start, stop)),
            )


def _inverse(order: Tensor) -> Tensor:
    """Return the inverse of a permutation [n]; much faster than adding at its places."""
    inverse = torch.empty_like(order)
    inverse[order.long()] = torch.arange(len(order), dtype=order.dtype, device=order.device)
    return inverse


Sides = tuple[Tensor, Tensor]


def hadamard_sides(size: int, device: torch.device, dtype: torch.dtype) -> Sides:
    """Return the Hadamard matrices of a and b, Sylvester's, with a b = size, a power of two."""
    left = 1 << (size.bit_length() - 1) // 2

    def matrix(side: int) -> Tensor:
        found = torch.ones(1, 1, dtype=dtype, device=device)
        while len(found) < side:
            found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
        return found

    return matrix(left), matrix(size // left)


def hadamard(x: Tensor, sides: Sides) -> Tensor:
    """Return H x along the last axis, [..., n]; H is not normalised.

    H of n = a b is the Kronecker product of H of a and H of b, so two small matrix products do
    what log2(n) passes of butterflies would, with the same numbers up to rounding.
    """
    one, two = sides
    return (one @ x.unflatten(-1, (len(one), len(two))) @ two).flatten(-2)
