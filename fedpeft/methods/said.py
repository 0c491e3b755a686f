"""SAID, structure-aware intrinsic dimension (Aghajanyan et al. 2021, arXiv 2012.13255)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification, WeightChange
from fedpeft.projection.fastfood import Fastfood
from fedpeft.projection.operators import Operator


class SAIDSettings(MethodSettings):
    """Settings of SAID."""

    name: Literal["said"]
    d: int = Field(
        1024, ge=2, le=MOST, description="number of trained parameters: theta and lambda"
    )


class SAID(Method[SAIDSettings]):
    """Change every weight along a random subspace: ``W_i = W_i0 + lambda_i P_i theta``.

    P_i is a Fastfood projection, theta in R^(d - m), with one lambda for each of the m layers (the
    embeddings and every block). At the start theta = 0 and lambda = 1. The columns of P_i have
    length 1, as in the paper's code; that code uses one Fastfood block as long as the weight, this
    uses blocks as long as theta.
    """

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
                f"method.d = {settings.d}: {self.layers} parameters scale layers; expected more"
            )
        self._free = settings.d - self.layers

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return theta [d - m] and lambda [m]."""
        return {"theta": (self._free,), "lambda": (self.layers,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return theta = 0, lambda = 1."""
        return {"theta": np.zeros(self._free), "lambda": np.ones(self.layers)}

    def projections(self) -> list[Fastfood]:
        """Return one projection per weight."""
        return [
            Fastfood(self.seed, f"said/{name}", prod(shape), self._free)
            for name, shape in self.shape.weights.items()
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one change per weight."""
        changes: list[Modification] = []
        weights = self.shape.weights.items()
        for (name, shape), project in zip(weights, projections, strict=True):
            scale = parameters["lambda"][:, self.shape.layer_of(name)]
            value = scale[:, None] / sqrt(prod(shape)) * project(parameters["theta"])
            changes.append(WeightChange("weights", 0, name, value.unflatten(-1, shape)))
        return changes
