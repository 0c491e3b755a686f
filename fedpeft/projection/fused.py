"""Dense projections on CUDA that are never in memory: a kernel makes entries as it multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedpeft.projection import BLOCK, Distribution, Projection, Stream, table
from fedpeft.projection.operators import Operator

GROUPS = (16, 64)  # least and most of a tile; a matrix product in Triton wants 16
ALIGNED = (64, 32)  # rows and columns of a tile: a block of the stream for each of 128 threads
RAGGED = (32, 16)  # the same, where a block must be drawn for each entry: four to a thread
PROGRAMS = 1024  # enough for any device; a constant, so that no device splits sums otherwise


class Fused(Operator):
    """A matrix whose entries are those of ``Dense`` to the bit, in float32 on CUDA.

    The promise is about entries: sums are taken in another order than with ``stored``, the same in
    every pass, so results differ from it by rounding.
    """

    _projection: Projection

    def __init__(self, projection: Projection, device: torch.device):
        super().__init__(projection, device, torch.float32, "regenerated")
        self._key = torch.from_numpy(projection.key().view("<i8")).to(device)

    @staticmethod
    def suits(
        projection: Stream, device: torch.device, dtype: torch.dtype
    ) -> TypeGuard[Projection]:
        """Return whether there is a kernel for this: drawn entries, float32, CUDA and Triton."""
        drawn = isinstance(projection, Projection) and projection.distribution != "identity"
        there = device.type == "cuda" and find_spec("triton") is not None
        return drawn and there and dtype == torch.float32

    def forward(self, z: Tensor) -> Tensor:
        """See Operator."""
        return self._product(z, transposed=False)

    def backward(self, gradient: Tensor) -> Tensor:
        """See Operator."""
        return self._product(gradient, transposed=True)

    def _product(self, x: Tensor, transposed: bool) -> Tensor:
        kept, summed = (self.columns, self.rows) if transposed else (self.rows, self.columns)
        flat = x.reshape(-1, summed).float().contiguous()
        parts = self._parts(flat, kept, transposed)
        return parts.sum(0).reshape(*x.shape[:-1], kept).to(x.dtype)

    def _parts(self, x: Tensor, kept: int, transposed: bool) -> Tensor:
        """Return what sums to the product of ``x`` [groups, summed]: [splits, groups, kept]."""
        from fedpeft.projection.triton_kernels import multiply

        groups, summed = x.shape
        aligned = self.rows % BLOCK == 0
        tile = ALIGNED if aligned else RAGGED
        across, along = reversed(tile) if transposed else tile
        stacked = min(max(_power_of_two(groups), GROUPS[0]), GROUPS[1])
        tiles, walked, stacks = (
            _parted(kept, across),
            _parted(summed, along),
            _parted(groups, stacked),
        )
        # Few tiles of the result would leave most of the device idle: then several share a sum.
        steps = _parted(walked, max(1, PROGRAMS // max(1, tiles * stacks)))
        splits = _parted(walked, steps)
        parts = x.new_empty(splits, groups, kept)
        if groups == 0:
            return parts
        numbers = _table(self._projection.distribution, x.device)
        sizes = groups, self.rows, self.columns, steps
        with torch.cuda.device_of(x):
            multiply[(tiles, splits, stacks)](
                *(x, self._key, numbers, parts, *sizes),
                TRANSPOSED=transposed,
                ALIGNED=aligned,
                GROUPS=stacked,
                ROWS=tile[0],
                COLUMNS=tile[1],
            )
        return parts

    def _make(self) -> Iterator[Any]:
        """There are no pieces."""
        return iter(())


@cache
def _table(distribution: Distribution, device: torch.device) -> Tensor:
    """Return the number of each sample, float32 [65536], once a device."""
    return torch.from_numpy(table(distribution)).to(device)


def _parted(number: int, size: int) -> int:
    """Return how many parts of a size hold a number."""
    return -(-number // size)


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()
