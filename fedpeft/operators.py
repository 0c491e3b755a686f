"""Projections at work on tensors: from memory, or made anew in every forward and backward pass.

Both go through the same pieces in the same order, so they give the same numbers to the bit;
``regenerated`` never holds more than a piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpeft.projection import Projection, Selection, Stream

Mode = Literal["stored", "regenerated"]

PIECE = 1 << 22  # entries of a piece: 16 MB


class Operator(ABC):
    """A fixed linear map, [..., columns] -> [..., rows]; gradients flow through it."""

    def __init__(self, projection: Stream, device: torch.device, dtype: torch.dtype, mode: Mode):
        self.rows, self.columns = projection.rows, projection.columns
        self.dtype, self._projection, self._device = dtype, projection, device
        self._kept = list(self._make()) if mode == "stored" else None

    def __call__(self, z: Tensor) -> Tensor:
        """Return the map of ``z``, [..., columns] -> [..., rows]."""
        return _Apply.apply(z, self)

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """The map, without a gradient of its own."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor:
        """The transposed map, [..., rows] -> [..., columns]."""

    @abstractmethod
    def _make(self) -> Iterator[Any]:
        """Make the pieces."""

    def _pieces(self) -> Iterator[Any]:
        return iter(self._kept) if self._kept is not None else self._make()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, self.dtype)


class _Apply(torch.autograd.Function):
    """Keeps nothing for the backward pass but the operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, operator: Operator) -> Tensor:
        return operator.forward(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Operator], output: Tensor) -> None:
        ctx.dtype, ctx.operator = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Under autocast the forward pass is in lower precision, and this one is not.
        return ctx.operator.backward(gradient.to(ctx.operator.dtype)).to(ctx.dtype), None


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
            stop = min(start + step, self.columns)
            yield start, self._tensor(self._projection.transposed(start, stop))


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


def operator(
    projection: Stream, device: torch.device, dtype: torch.dtype, mode: Mode = "stored"
) -> Operator:
    """Return a projection at work on tensors of a device and dtype."""
    from fedpeft.fastfood import Fastfood, Transform

    kinds: dict[type[Stream], type[Operator]] = {
        Projection: Dense,
        Selection: Select,
        Fastfood: Transform,
    }
    return kinds[type(projection)](projection, device, dtype, mode)
