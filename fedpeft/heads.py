"""The head: a linear layer on the representation that the task reads, part of every task vector.

Optionally its weights are a fixed projection of d numbers, so that a task with many classes does
not train and send C * width numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.batches.encoded import IGNORED
from fedpeft.errors import UserError
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.tasks.base import Kind
from fedpeft.vector import HEAD

STD = 0.02  # Gupta et al. 2023, released code: weights N(0, 0.02), bias 0


class Head:
    """A linear head of C outputs; ``d`` > 0 trains d numbers in place of its weights.

    Raises:
        UserError: ``d`` is not less than the number of weights.
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
        """Draw weights from N(0, 0.02), also if projected; the bias is 0."""
        (weight, shape), (bias, outputs) = self.parameters().items()
        return {weight: generator.normal(0, STD, shape), bias: np.zeros(outputs)}

    def projections(self) -> list[Projection]:
        """Return the projection of the weights, if there is one."""
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

    def read(self, states: Tensor, batch: Batch, offset: int) -> Tensor:
        """Return the representation of texts, [N, width], or for tags of tokens, [N, T, width].

        Args:
            states: last hidden states [N, k + T, width]; k positions of a prompt come first.
            batch: T tokens each, ``batch.read`` = the position to read, -1 = the mean.
            offset: where position 0 is read.
        """
        tokens = batch.input_ids.shape[1]
        if self.kind == "tags":
            return states[:, -tokens:]
        at = (batch.read.clamp(min=0) + offset)[:, None, None].expand(-1, 1, states.shape[2])
        read = states.gather(1, at)[:, 0]
        if (batch.read >= 0).all():
            return read
        mask = batch.attention_mask[:, -tokens:, None].to(states.dtype)
        mean = (states[:, -tokens:] * mask).sum(1) / mask.sum(1)
        return torch.where((batch.read >= 0)[:, None], read, mean)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each example, [N].

        Args:
            outputs: logits or scores [N, C]; for tags [N, T, C].
            labels: classes or scores [N]; for tags [N, T], where -100 has no loss. The loss of a
                tagged example is the mean over its words, not over those of the batch as usual:
                per-example gradients need a loss that depends on one example only.
        """
        if self.kind == "score":
            return functional.mse_loss(outputs[:, 0], labels, reduction="none")
        if self.kind == "classes":
            return functional.cross_entropy(outputs, labels, reduction="none")
        losses = functional.cross_entropy(
            outputs.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED
        )
        words = (labels != IGNORED).sum(1)
        return losses.sum(1) / torch.clamp(words, min=1)
