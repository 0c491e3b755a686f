"""Optimizers of task vectors [G, P]: elementwise, so rows are trained independently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from fedpeft.experiment.settings import LocalSection
from fedpeft.privacy.norms import row_norms
from fedpeft.profiling import phase

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Gupta et al. 2023, appendix C
_BLOCK = 1 << 21  # numbers of each tensor updated together; measured on a CPU


class Optimizer(ABC):
    """Updates rows of task vectors in place; its state has the same shape [K, P]."""

    @abstractmethod
    def step(self, vectors: Tensor, gradients: Tensor, rates: Sequence[float]) -> None:
        """Update the first n rows.

        Args:
            vectors: [n, P], updated in place; n shrinks as clients finish.
            gradients: [n, P].
            rates: learning rate of each row, n.
        """


class AdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019): PyTorch's fused kernel, which reads each number once."""

    def __init__(self, vectors: Tensor, weight_decay: float):
        self.mean, self.square = torch.zeros_like(vectors), torch.zeros_like(vectors)
        self.weight_decay, self.steps = weight_decay, 0

    def step(self, vectors: Tensor, gradients: Tensor, rates: Sequence[float]) -> None:
        """See Optimizer."""
        for rate in dict.fromkeys(rates):
            # One tensor a row: the kernel rounds the end of a tensor differently, so a row's bits
            # would depend on its cohort.
            rows = [row for row, value in enumerate(rates) if value == rate]
            everything = (vectors, gradients, self.mean, self.square)
            params, grads, means, squares = ([part[row] for row in rows] for part in everything)
            steps = [vectors.new_full((), self.steps, dtype=torch.float32) for _ in rows]
            adamw(
                params,
                grads,
                means,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=BETA1,
                beta2=BETA2,
                lr=rate,
                weight_decay=self.weight_decay,
                eps=EPSILON,
            )
        self.steps += 1


class SGD(Optimizer):
    """Gradient descent with momentum and decoupled weight decay."""

    def __init__(self, vectors: Tensor, weight_decay: float, momentum: float):
        self.velocity = torch.zeros_like(vectors)
        self.weight_decay, self.momentum = weight_decay, momentum

    def step(self, vectors: Tensor, gradients: Tensor, rates: Sequence[float]) -> None:
        """See Optimizer."""
        lr = vectors.new_tensor(rates)[:, None]
        decay = 1 - lr * self.weight_decay
        for vector, gradient, velocity, update in _blocks(vectors, gradients, self.velocity):
            velocity.mul_(self.momentum).add_(gradient)
            vector.mul_(decay)
            vector.sub_(torch.mul(velocity, lr, out=update))


def _blocks(vectors: Tensor, *others: Tensor) -> Iterator[list[Tensor]]:
    """Yield views of the first n rows of all tensors, some columns at a time, and a scratch tensor.

    Steps then allocate no tensor as large as a task vector, which would take longer than the
    arithmetic.

    Args:
        vectors: [n, P].
        others: [at least n, P].
    """
    rows, size = vectors.shape
    width = max(1, _BLOCK // rows)
    scratch = vectors.new_empty(rows, min(width, size))
    for start in range(0, size, width):
        views = [tensor[:rows, start : start + width] for tensor in (vectors, *others)]
        yield [*views, scratch[:, : views[0].shape[1]]]


def build_optimizer(local: LocalSection, vectors: Tensor) -> Optimizer:
    """Return the optimizer that ``local`` names, with state for task vectors [K, P]."""
    if local.optimizer == "sgd":
        return SGD(vectors, local.weight_decay, local.momentum)
    return AdamW(vectors, local.weight_decay)


@dataclass(frozen=True)
class HeadRate:
    """How fast the head moves, and the other numbers beside it.

    Attributes:
        numbers: how many of the last numbers of a task vector are the head's.
        lr: their learning rate where the other numbers have ``local.lr``.
        steepness: length of the head's rows from which on the other numbers are slower; 0 = they
            keep ``local.lr``.
    """

    numbers: int
    lr: float
    steepness: float = 0.0

    def pace(self, weight: np.ndarray) -> float:
        """Return the factor of ``local.lr`` of the numbers beside a head.

        A steep head turns a small shift of what it reads into a large one of the logits, and
        Adam's steps have the same size however small the gradient is.

        Args:
            weight: of the head that a client starts the round with, [C, width]. The size of a
                single output, a score, depends on the unit of the scores: it slows nothing.
        """
        if not self.steepness or len(weight) < 2:
            return 1.0
        rows = weight - weight.mean(0)  # a shift of all logits alike changes no probability
        length = float(np.linalg.norm(rows.astype(np.float64), axis=1).mean())
        return min(1.0, self.steepness / length) ** 2 if length else 1.0


class Steps:
    """The steps of a round, as ``local`` describes them: all that follows from the gradients.

    With a rate of its own, the head is clipped and updated apart from the other numbers.

    Args:
        local: how to train.
        vectors: task vectors [K, P], which the steps update in place.
        clips: whether to apply ``local.max_grad_norm``.
        fixed: True for numbers that the steps leave as they are, bool [K, P].
        head: how fast the head moves; None = as the other numbers.
        paces: factors of ``local.lr`` of the numbers beside the head, K; see ``HeadRate.pace``.
    """

    def __init__(
        self,
        local: LocalSection,
        vectors: Tensor,
        clips: bool = True,
        fixed: Tensor | None = None,
        head: HeadRate | None = None,
        paces: Sequence[float] | None = None,
    ):
        self._local, self._vectors = local, vectors
        self._parts = [
            (part, build_optimizer(local, vectors[:, part]), factors)
            for part, factors in _parts(local, vectors, head, paces)
        ]
        self._max_norm = local.max_grad_norm if clips else 0.0
        # No copy unless needed: vectors of `full` are as large as the backbone.
        self._initial = vectors.clone() if local.proximal_mu or fixed is not None else vectors
        self._fixed = fixed

    def take(self, gradients: Tensor, progress: Sequence[float]) -> None:
        """Take the next step of the first n rows.

        Args:
            gradients: [n, P]; changed in place.
            progress: share of the run that is over, of each row; see ``learning_rate``.
        """
        rows = len(gradients)
        current, initial = self._vectors[:rows], self._initial[:rows]
        if self._local.proximal_mu:  # FedProx (Li et al. 2020, arXiv 1812.06127)
            gradients += self._local.proximal_mu * (current - initial)
        if self._fixed is not None:
            gradients.masked_fill_(self._fixed[:rows], 0)
        rates = [learning_rate(self._local, share) for share in progress]
        with phase("optimiser"):
            for part, optimizer, factors in self._parts:
                clipped = clip_rows(gradients[:, part], self._max_norm)
                own = [factor * rate for factor, rate in zip(factors, rates, strict=False)]
                optimizer.step(current[:, part], clipped, own)
        if self._fixed is not None:  # of weight decay, too
            current.copy_(initial.where(self._fixed[:rows], current))


def _parts(
    local: LocalSection,
    vectors: Tensor,
    head: HeadRate | None,
    paces: Sequence[float] | None,
) -> list[tuple[slice, Sequence[float]]]:
    """Return the parts of task vectors [K, P] with each row's factor of ``learning_rate``."""
    rows, size = vectors.shape
    paces = paces or [1.0] * rows
    # Paces do not decide here: parts are clipped, so a row would depend on its cohort.
    alike = head is None or (head.lr == local.lr and not head.steepness)
    if head is None or alike or not head.numbers:
        return [(slice(None), [1.0] * rows)]
    assert local.lr is not None, "the experiment is filled in"
    border = size - head.numbers
    own = slice(border, size), [head.lr / local.lr] * rows
    return [(slice(0, border), paces), own] if border else [own]


def learning_rate(local: LocalSection, progress: float) -> float:
    """Return the learning rate after the share ``progress`` in [0, 1) of the run.

    It rises linearly from 0 during the share ``warmup``, then is constant or falls linearly to 0.
    """
    if local.lr is None:
        raise ValueError("local.lr is not filled in; build the experiment with Experiment.load")
    if progress < local.warmup:
        return local.lr * progress / local.warmup
    if local.schedule == "constant":
        return local.lr
    return local.lr * (1 - progress) / (1 - local.warmup)


def clip_rows(gradients: Tensor, max_norm: float) -> Tensor:
    """Scale rows of [n, P] in place to an L2 norm of at most ``max_norm``; 0 = no clipping."""
    if not max_norm:
        return gradients
    factors = (max_norm / (row_norms(gradients) + 1e-6)).clamp(max=1.0)
    return gradients.mul_(factors[:, None].to(gradients.dtype))
