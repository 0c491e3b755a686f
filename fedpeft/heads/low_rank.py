"""A head whose weights are a product of two thin matrices (LoRA: Hu et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.heads.base import Parameters, Weights
from fedpeft.projection.operators import Operator
from fedpeft.vector import HEAD


class LowRank(Weights):
    """Train A [C, r] and B [r, width]: the weights are A B, r * (C + width) numbers.

    Raises:
        UserError: the matrices are not smaller than the weights.
    """

    def __init__(self, classes: int, width: int, rank: int):
        super().__init__(classes, width)
        self.rank = rank
        if rank * (classes + width) >= classes * width:
            largest = (classes * width - 1) // (classes + width)
            raise UserError(
                f"head.rank = {rank}: expected at most {largest}, which saves numbers of a head of "
                f"{classes} outputs; 0 trains the weights directly"
            )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of A and B."""
        return {f"{HEAD}a": (self.classes, self.rank), f"{HEAD}b": (self.rank, self.width)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Set A to 0 and draw rows of B of length about 1, so that the weights start at 0."""
        return {
            f"{HEAD}a": np.zeros((self.classes, self.rank)),
            f"{HEAD}b": generator.normal(0, 1 / sqrt(self.width), (self.rank, self.width)),
        }

    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return the best approximation of rank r (Eckart and Young 1936), evenly split."""
        left, values, right = np.linalg.svd(weight @ root, full_matrices=False)
        kept = min(self.rank, len(values))
        scales = np.sqrt(values[:kept])
        a, b = np.zeros((self.classes, self.rank)), np.zeros((self.rank, self.width))
        a[:, :kept] = left[:, :kept] * scales
        b[:kept] = np.linalg.solve(root, (scales[:, None] * right[:kept]).T).T
        return {f"{HEAD}a": a, f"{HEAD}b": b}, a @ b

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return A B, [G, C, width]."""
        return parameters[f"{HEAD}a"] @ parameters[f"{HEAD}b"]
