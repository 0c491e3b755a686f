"""Select the operator that applies a projection."""

from __future__ import annotations

import torch

from fedpeft.projection import Projection, Selection, Stream
from fedpeft.projection.fastfood import Fastfood
from fedpeft.projection.fused import Fused
from fedpeft.projection.operators import Dense, Mode, Operator, Select, Transform

_KINDS: dict[type[Stream], type[Operator]] = {
    Projection: Dense,
    Selection: Select,
    Fastfood: Transform,
}


def operator(
    projection: Stream, device: torch.device, dtype: torch.dtype, mode: Mode = "stored"
) -> Operator:
    """Return the operator that applies a projection to tensors of a device and dtype."""
    if mode == "regenerated" and Fused.suits(projection, device, dtype):
        return Fused(projection, device)
    return _KINDS[type(projection)](projection, device, dtype, mode)
