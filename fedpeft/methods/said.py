"""SAID: all weights change along a random subspace, scaled layer by layer.

Structure-aware intrinsic dimension (Aghajanyan et al. 2021, arXiv 2012.13255, section 3):
W_i = W_i0 + lambda_i P(theta)_i, with P a Fastfood projection, theta in R^(d - m) and one lambda
for each of the m layers (here the embeddings and every block). As in their code, the columns of a
weight's projection have length 1; unlike there, it is made of blocks as long as theta, not of one
block as long as the weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification, WeightChange
from fedpeft.projection.fastfood import Fastfood
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape, layer_of


class SAIDSettings(MethodSettings):
    """Settings of SAID."""

    name: Literal["said"]
    d: int = Field(
        1024, ge=2, le=1_000_000, description="trained numbers in all: theta and the lambdas"
    )


class SAID(Method[SAIDSettings]):
    """theta = 0 at the start, lambda = 1: the identity."""

    Settings = SAIDSettings
    lr = 1e-2
    source = "Aghajanyan et al. 2021, section 3"
    fusable = True
    grouped = False
    sites = ("weights",)

    def __init__(self, settings: SAIDSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.layers = shape.layers + 1
        if settings.d <= self.layers:
            raise UserError(
                f"method.d = {settings.d}: {self.layers} of them scale layers; expected more"
            )
        self._free = settings.d - self.layers

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return theta [d - m] and the lambdas [m]."""
        return {"theta": (self._free,), "lambda": (self.layers,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return theta = 0, lambda = 1."""
        return {"theta": np.zeros(self._free), "lambda": np.ones(self.layers)}

    def projections(self) -> list[Fastfood]:
        """Return one projection for each weight."""
        return [
            Fastfood(self.seed, f"said/{name}", prod(shape), self._free)
            for name, shape in self.shape.weights.items()
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the change of every weight; columns of its projection have length 1."""
        changes: list[Modification] = []
        weights = self.shape.weights.items()
        for (name, shape), project in zip(weights, projections, strict=True):
            scale = parameters["lambda"][:, layer_of(name)]
            value = scale[:, None] / sqrt(prod(shape)) * project(parameters["theta"])
            changes.append(WeightChange("weights", 0, name, value.unflatten(-1, shape)))
        return changes
