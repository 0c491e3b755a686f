"""A head whose weights are a fixed random projection of a short vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.heads.base import Parameters, Weights
from fedpeft.heads.full import STD
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.vector import HEAD


class Projected(Weights):
    """Train z: the weights are P z / sqrt(d), with P fixed and d = the length of z.

    Raises:
        UserError: ``d`` is not less than the number of weights.
    """

    def __init__(self, classes: int, width: int, d: int, seed: int):
        super().__init__(classes, width)
        self.d, self.seed = d, seed
        if d >= classes * width:
            raise UserError(
                f"head.d = {d}: expected less than {classes * width}, the weights of a head of "
                f"{classes} outputs; 0 trains them directly"
            )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of z."""
        return {f"{HEAD}z": (self.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw z from N(0, 0.02), so that the weights have this deviation, too."""
        return {f"{HEAD}z": generator.normal(0, STD, self.d)}

    def projections(self) -> list[Projection]:
        """Return the projection P."""
        rows = self.classes * self.width
        return [Projection(self.seed, "head/weight/0", rows, self.d, "normal")]

    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return the least-squares solution z."""
        (projection,) = self.projections()
        weights = projection.transposed().reshape(self.d, *weight.shape) / sqrt(self.d)
        columns = (weights @ root).reshape(self.d, -1).T
        z, *_ = np.linalg.lstsq(columns, (weight @ root).reshape(-1), rcond=None)
        return {f"{HEAD}z": z}, np.tensordot(z, weights, 1)

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return P z / sqrt(d), [G, C, width]."""
        (project,) = projections
        flat = project(parameters[f"{HEAD}z"] / sqrt(self.d))
        return flat.view(-1, self.classes, self.width)
