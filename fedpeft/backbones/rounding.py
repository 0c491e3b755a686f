"""Rounded weights: bfloat16, 8 bits or 4 bits.

- 8 bits: a row of a weight [outputs, inputs] has one scale, its largest magnitude / 127.
- 4 bits: NormalFloat in blocks of 64 (Dettmers et al. 2023, arXiv 2305.14314, section 3), by
  bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpeft.errors import UserError

PIECE = 1 << 22  # numbers of a weight that are expanded at once: 16 MB in float32
_LEVELS = 127  # largest magnitude of an 8-bit number; -128 is not used


class Stored(Protocol):
    """A weight [rows, columns] in a compact form."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield consecutive groups of rows in a dtype, each [rows of the group, columns]."""


@dataclass(frozen=True)
class Rows:
    """A weight in bfloat16, or in 8 bits with a scale for each row.

    Attributes:
        values: bfloat16 or int8 [rows, columns].
        scale: float32 [rows, 1]; None for bfloat16.
    """

    values: Tensor
    scale: Tensor | None = None

    @classmethod
    def rounded(cls, weight: Tensor) -> Rows:
        """Return a weight [rows, columns] in 8 bits."""
        scale = weight.abs().amax(1, keepdim=True) / _LEVELS
        scale = torch.where(scale > 0, scale, 1.0)  # a row of zeros
        return cls((weight / scale).round().to(torch.int8), scale)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes + (self.scale.nbytes if self.scale is not None else 0)

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """See Stored."""
        rows, columns = self.values.shape
        step = max(1, PIECE // columns)
        for start in range(0, rows, step):
            yield self.at(slice(start, start + step)).to(dtype)

    def at(self, rows: Any) -> Tensor:
        """Return some rows in float32."""
        found = self.values[rows].float()
        return found if self.scale is None else found.mul_(self.scale[rows])


@dataclass(frozen=True)
class FourBit:
    """A weight in 4 bits: packed pieces and bitsandbytes' description of each."""

    packed: tuple[tuple[Tensor, Any], ...]

    @classmethod
    def rounded(cls, weight: Tensor) -> FourBit:
        """Return a weight [rows, columns] in 4 bits.

        Raises:
            UserError: bitsandbytes is not installed.
        """
        quantize = _bitsandbytes().quantize_4bit
        rows = weight.split(max(1, PIECE // weight.shape[1]))
        return cls(tuple(quantize(piece.contiguous(), quant_type="nf4") for piece in rows))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(packed.nbytes + about.absmax.nbytes for packed, about in self.packed)

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """See Stored."""
        expand = _bitsandbytes().dequantize_4bit
        for packed, about in self.packed:
            yield expand(packed, about).to(dtype)


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes.functional as library
    except ImportError:
        raise UserError(
            "engine.weights = 'int4': needs bitsandbytes; pip install 'fedpeft[int4]', or use "
            "'int8', which needs nothing"
        ) from None
    return library
