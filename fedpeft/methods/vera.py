"""VeRA of Kopiczko et al. 2024 (arXiv 2310.11454)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification, ScaledLowRank
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator


class VeRASettings(MethodSettings):
    """Settings of VeRA."""

    name: Literal["vera"]
    rank: int = Field(
        256, ge=1, le=MOST, description="rank r of the shared matrices (paper: 256 or 1024)"
    )
    d_initial: float = Field(0.1, gt=0, description="initial value of d, the inner vectors")


class VeRA(Method[VeRASettings]):
    """Scale a fixed random low-rank change by vectors: ``h = W x + diag(b) B diag(d) A x``.

    Equation 2, on query and value. A and B are shared by all blocks, Kaiming-uniform with variance
    2 / inputs (section 3.2); a narrower value uses the first rows of B. b = 0 at the start.
    """

    Settings = VeRASettings
    lr = 1e-2
    source = "Kopiczko et al. 2024, section 3"
    fusable = True

    def __init__(self, settings: VeRASettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self._places = self.places(("q", "v"))

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return d [r] and b [width] of query and value in every block."""
        return {
            f"{layer}.{site}.{name}": shape
            for layer, site in self._places
            for name, shape in (("d", (self.settings.rank,)), ("b", (self.shape.outputs(site),)))
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return d filled with ``d_initial`` and b = 0."""
        return {
            name: np.full(shape, self.settings.d_initial if name.endswith("d") else 0.0)
            for name, shape in self.parameters().items()
        }

    def projections(self) -> list[Projection]:
        """Return A [r, width] and B [width, r], with entries of unit variance."""
        rank = self.settings.rank
        rows = max(self.shape.outputs(site) for _, site in self._places)
        return [
            Projection(self.seed, "vera/down/0", rank, self.shape.width, "uniform"),
            Projection(self.seed, "vera/up/0", rows, rank, "uniform"),
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one change per block and site; d absorbs the scale of A and B."""
        down, up = projections
        scale = sqrt(2 / self.shape.width) * sqrt(2 / self.settings.rank)
        return [
            ScaledLowRank(
                site,
                layer,
                parameters[f"{layer}.{site}.d"] * scale,
                parameters[f"{layer}.{site}.b"],
                down,
                up,
            )
            for layer, site in self._places
        ]
