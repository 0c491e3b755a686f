"""LoRA: low-rank changes of the query and value projections (Hu et al. 2021, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import LowRank, Modification
from fedpeft.settings import MethodSettings

SITES = ("q", "v")  # the paper's choice, section 4.2


class LoRASettings(MethodSettings):
    """Settings of LoRA."""

    name: Literal["lora"]
    rank: int = Field(1, ge=1, description="rank r of each change")
    alpha: float = Field(8.0, gt=0, description="the change is scaled by alpha / r")


class LoRA(Method[LoRASettings]):
    """h = W x + (alpha / r) B A x on query and value; B = 0 makes it the identity at the start."""

    Settings = LoRASettings
    lr = 1e-3
    sites = "q, v"
    source = "Hu et al. 2021, section 4.1"

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return A [r, width] and B [width, r] of query and value in every block."""
        rank, width = self.settings.rank, self.shape.width
        return {
            f"{layer}.{site}.{name}": shape
            for layer in range(self.shape.layers)
            for site in SITES
            for name, shape in (("A", (rank, width)), ("B", (width, rank)))
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw A Kaiming-uniform (a = sqrt 5, i.e. bound 1 / sqrt(width)), B = 0."""
        bound = 1 / sqrt(self.shape.width)
        return {
            name: generator.uniform(-bound, bound, shape) if name.endswith("A") else np.zeros(shape)
            for name, shape in self.parameters().items()
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Tensor]
    ) -> list[Modification]:
        """Return one low-rank change for query and value of every block."""
        scale = self.settings.alpha / self.settings.rank
        return [
            LowRank(
                site,
                layer,
                parameters[f"{layer}.{site}.A"],
                parameters[f"{layer}.{site}.B"],
                scale,
            )
            for layer in range(self.shape.layers)
            for site in SITES
        ]
