"""The head: a linear layer on what the task reads, its numbers part of every task vector.

Optionally its weights are themselves a fixed projection of a few numbers, so that a task with
many classes does not pay C * width numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.errors import UserError
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.tasks.base import IGNORED, Kind
from fedpeft.vector import HEAD

STD = 0.02  # Gupta et al. 2023, released code: weights N(0, 0.02), bias 0


class Head:
    """A linear head of C outputs; ``d`` > 0 trains so many numbers in place of its weights.

    Raises:
        UserError: ``d`` saves nothing.
    """

    def __init__(self, kind: Kind, classes: int, width: int, d: int = 0, seed: int = 0):
        self.kind, self.classes, self.width, self.d, self.seed = kind, classes, width, d, seed
        if d >= classes * width:
            raise UserError(
                f"head.d = {d}: expected less than {classes * width}, the weights of a head of "
                f"{classes} outputs; 0 trains them directly"
            )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each parameter."""
        weight: dict[str, tuple[int, ...]] = {f"{HEAD}weight": (self.classes, self.width)}
        if self.d:
            weight = {f"{HEAD}z": (self.d,)}
        return {**weight, f"{HEAD}bias": (self.classes,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights N(0, 0.02), bias 0; projected weights have the same deviation."""
        (weight, shape), (bias, outputs) = self.parameters().items()
        return {weight: generator.normal(0, STD, shape), bias: np.zeros(outputs)}

    def projections(self) -> list[Projection]:
        """Return the projection of the weights, if they have one."""
        rows = self.classes * self.width
        return [Projection(self.seed, "head/weight/0", rows, self.d, "normal")] if self.d else []

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> tuple[Tensor, Tensor]:
        """Return weight [G, C, width] and bias [G, C]."""
        bias = parameters[f"{HEAD}bias"]
        if not self.d:
            return parameters[f"{HEAD}weight"], bias
        (project,) = projections
        flat = project(parameters[f"{HEAD}z"] / sqrt(self.d))
        return flat.view(-1, self.classes, self.width), bias

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return each example's own loss [N].

        Args:
            outputs: logits or scores [N, C]; for tags [N, T, C].
            labels: classes or scores [N]; for tags [N, T], where -100 has no loss: an example's
                loss is the mean over its words, so that it is one example's own, as per-example
                gradients need. (Usual is the mean over the words of the batch.)
        """
        if self.kind == "score":
            return functional.mse_loss(outputs[:, 0], labels, reduction="none")
        if self.kind == "classes":
            return functional.cross_entropy(outputs, labels, reduction="none")
        each = functional.cross_entropy(
            outputs.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED
        )
        words = (labels != IGNORED).sum(1)
        return each.sum(1) / torch.clamp(words, min=1)
