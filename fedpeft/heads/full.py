"""The default head: every weight is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedpeft.heads.base import Parameters, Weights
from fedpeft.projection.operators import Operator
from fedpeft.vector import HEAD

STD = 0.02  # Gupta et al. 2023, released code: weights N(0, 0.02), bias 0


class Full(Weights):
    """Train the C * width weights themselves."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of the weights."""
        return {f"{HEAD}weight": (self.classes, self.width)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights from N(0, 0.02)."""
        return {f"{HEAD}weight": generator.normal(0, STD, (self.classes, self.width))}

    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return the weights themselves."""
        return {f"{HEAD}weight": weight}, weight

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return the weights, [G, C, width]."""
        return parameters[f"{HEAD}weight"]
