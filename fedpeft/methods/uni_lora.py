"""Uni-LoRA: one trained vector fills all low-rank matrices (Li et al. 2025, arXiv 2506.00799).

Every entry of every A and B is one of the vector's numbers, dealt out by the seeded stream and
divided by sqrt(how often it is there), so that the map keeps lengths (section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.methods.lora import low_rank_changes, low_rank_shapes
from fedpeft.modifications import Modification
from fedpeft.projection import Selection
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape

BOUND = 0.02  # of the first values; zeros would have no gradient, as A and B share them


class UniLoRASettings(MethodSettings):
    """Settings of Uni-LoRA."""

    name: Literal["uni_lora"]
    d: int = Field(1024, ge=1, description="length of the trained vector (paper: 23,040)")
    rank: int = Field(4, ge=1, description="rank r of each change")


class UniLoRA(Method[UniLoRASettings]):
    """Changes B A of query and value whose entries are shared; nearly the identity at the start."""

    Settings = UniLoRASettings
    lr = 1e-2
    source = "Li et al. 2025, section 3"
    fusable = True
    sites = ("q", "v")

    def __init__(self, settings: UniLoRASettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self._shapes = low_rank_shapes(self.sites, settings.rank, shape)
        entries = self._entries
        if settings.d > entries:
            raise UserError(
                f"method.d = {settings.d}: rank {settings.rank} has {entries} entries to fill on "
                f"this backbone; expected at most {entries}"
            )

    @property
    def _entries(self) -> int:
        return sum(prod(shape) for shape in self._shapes.values())

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the one vector, [d]."""
        return {"theta": (self.settings.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw it uniformly from +-0.02."""
        return {"theta": generator.uniform(-BOUND, BOUND, self.settings.d)}

    def projections(self) -> list[Selection]:
        """Return the map from the vector to the entries of all matrices."""
        return [Selection(self.seed, "uni_lora/entries/0", self._entries, self.settings.d)]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the changes that the vector fills."""
        (fill,) = projections
        sizes = [prod(shape) for shape in self._shapes.values()]
        pieces = fill(parameters["theta"]).split(sizes, dim=-1)
        filled = {
            name: piece.unflatten(-1, shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        return low_rank_changes(filled, self.sites, self.shape.layers, scale=1.0)
