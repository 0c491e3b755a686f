"""The head: a linear layer on the representation that the task reads, part of every task vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.batches.encoded import IGNORED
from fedpeft.heads.closed import Fit
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.tasks.base import Kind
from fedpeft.vector import HEAD

BIAS = f"{HEAD}bias"
Parameters = dict[str, np.ndarray]


class Weights(ABC):
    """The weights of a head as a function of the parameters that are trained and sent.

    Attributes:
        classes: number of outputs C.
        width: size of the representation.
    """

    def __init__(self, classes: int, width: int):
        self.classes, self.width = classes, width

    @abstractmethod
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each parameter."""

    @abstractmethod
    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the initial parameters."""

    @abstractmethod
    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return the parameters of the weights W that are nearest to ``weight``, and W.

        Args:
            weight: [C, width].
            root: [width, width], symmetric and positive; the distance is |(W - weight) root|.
        """

    def projections(self) -> list[Projection]:
        """Return the fixed projections that ``realise`` needs."""
        return []

    @abstractmethod
    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return the weights of G heads, [G, C, width].

        Args:
            parameters: ``name -> [G, *shape]``.
            projections: operators of ``self.projections()``.
            labels: fixed weights made of the labels, [C, width]; only ``Labelled`` needs them.
        """


class Head:
    """A linear head: ``weights`` of C outputs and a bias.

    Args:
        kind: of the task.
        weights: of the outputs.
        unit: whether the head reads texts at one length, see ``at_length``.
        apart: whether it reads pairs of texts that pass on their own, see ``joined``. The weights
            then have twice the width of the backbone.
    """

    def __init__(self, kind: Kind, weights: Weights, unit: bool = False, apart: bool = False):
        self.kind, self.weights, self.unit, self.apart = kind, weights, unit, apart
        self.classes, self.width = weights.classes, weights.width

    @property
    def free(self) -> np.ndarray | None:
        """Direction of what is read that is known to tell the outputs apart, see ``closed_form``.

        Of pairs that pass on their own, the cosine.
        """
        if not self.apart:
            return None
        half = self.width // 2
        return np.concatenate([np.full(half, half**-0.5), np.zeros(half)])

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each parameter."""
        return {**self.weights.parameters(), BIAS: (self.classes,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the initial parameters; the bias is 0."""
        return {**self.weights.initial(generator), BIAS: np.zeros(self.classes)}

    def nearest(self, fit: Fit) -> Parameters:
        """Return the parameters of the head whose outputs are nearest to those of ``fit``."""
        parameters, weight = self.weights.nearest(fit.weight, fit.root)
        return {**parameters, BIAS: fit.bias(weight)}

    def projections(self) -> list[Projection]:
        """Return the fixed projections of the weights."""
        return self.weights.projections()

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return weight [G, C, width] and bias [G, C]; see ``Weights.realise``."""
        return self.weights.realise(parameters, projections, labels), parameters[BIAS]

    def read(self, states: Tensor, batch: Batch, offset: int) -> Tensor:
        """Return the representation of texts, [N, width], or for tags of tokens, [N, T, width].

        Of pairs that pass on their own, see ``joined``.

        Args:
            states: last hidden states [N, k + T, width]; k positions of a prompt come first.
            batch: T tokens each, ``batch.read`` = the position to read, -1 = the mean.
            offset: where position 0 is read.
        """
        tokens = batch.input_ids.shape[1]
        if self.kind == "tags":
            return states[:, -tokens:]
        return self.combined(read_texts(states, batch, offset))

    def combined(self, read: Tensor) -> Tensor:
        """Return what the head reads of the representations of texts, see ``read_texts``."""
        if self.unit or self.apart:
            read = at_length(read)
        return joined(read) if self.apart else read

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


def at_length(read: Tensor) -> Tensor:
    """Return representations [N, width] scaled to the length sqrt(width)."""
    return functional.normalize(read, dim=-1) * read.shape[-1] ** 0.5


def joined(read: Tensor) -> Tensor:
    """Return what a head reads of N pairs of texts [2 N, width]: [N, 2 width].

    The products of their numbers, whose mean is the cosine, and the absolute differences.
    """
    one, other = read.unflatten(0, (-1, 2)).unbind(1)
    return torch.cat([one * other, (one - other).abs()], dim=1)


def read_texts(states: Tensor, batch: Batch, offset: int) -> Tensor:
    """Return the representation of texts, [N, width]; see ``Head.read``."""
    tokens = batch.input_ids.shape[1]
    at = (batch.read.clamp(min=0) + offset)[:, None, None].expand(-1, 1, states.shape[2])
    read = states.gather(1, at)[:, 0]
    if (batch.read >= 0).all():
        return read
    mask = batch.attention_mask[:, -tokens:, None].to(states.dtype)
    mean = (states[:, -tokens:] * mask).sum(1) / mask.sum(1)
    return torch.where((batch.read >= 0)[:, None], read, mean)
