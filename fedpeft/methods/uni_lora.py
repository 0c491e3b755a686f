"""Uni-LoRA: one trained vector fills all low-rank matrices (Li et al. 2025, arXiv 2506.00799)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.methods.lora import low_rank_changes, low_rank_shapes
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification
from fedpeft.projection import Selection
from fedpeft.projection.operators import Operator

BOUND = 0.02  # of the initial values; zeros in both A and B would have no gradient


class UniLoRASettings(MethodSettings):
    """Settings of Uni-LoRA."""

    name: Literal["uni_lora"]
    d: int = Field(1024, ge=1, le=MOST, description="length of the trained vector (paper: 23,040)")
    rank: int = Field(4, ge=1, le=MOST, description="rank r of each change")


class UniLoRA(Method[UniLoRASettings]):
    """Add low-rank changes from one vector: ``h = W x + B A x``, ``[A, B, ...] = P theta``.

    P selects one entry of theta for each entry of the matrices of query and value, at random from
    the seed, divided by sqrt(number of times it is selected), so that P preserves lengths.
    """

    Settings = UniLoRASettings
    lr = 1e-2
    source = "Li et al. 2025, section 3"
    fusable = True

    def __init__(self, settings: UniLoRASettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self._places = self.places(("q", "v"))
        self._shapes = low_rank_shapes(self._places, settings.rank, shape)
        self._sizes = [prod(shape) for shape in self._shapes.values()]
        entries = sum(self._sizes)
        if settings.d > entries:
            raise UserError(
                f"method.d = {settings.d}: rank {settings.rank} has {entries} entries to fill on "
                f"this backbone; expected at most {entries}"
            )

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return theta [d]."""
        return {"theta": (self.settings.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw theta uniformly from [-0.02, 0.02]: close to the identity."""
        return {"theta": generator.uniform(-BOUND, BOUND, self.settings.d)}

    def projections(self) -> list[Selection]:
        """Return P, which fills the entries of all matrices."""
        return [Selection(self.seed, "uni_lora/entries/0", sum(self._sizes), self.settings.d)]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one low-rank change per block and site."""
        (fill,) = projections
        pieces = fill(parameters["theta"]).split(self._sizes, dim=-1)
        filled = {
            name: piece.unflatten(-1, shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        return low_rank_changes(filled, self._places, scale=1.0)
