"""The gradients of one training step of a cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.encoded import Encoded
from fedpeft.model import TaskModel
from fedpeft.privacy.dpsgd import DPSGD, private_gradients
from fedpeft.profiling import phase


@dataclass(frozen=True)
class Step:
    """A step of G clients.

    Attributes:
        model: the task model they share.
        vectors: task vectors [G, P].
        data: texts of each client.
        batches: rows of each client's batch.
        private: DP-SGD of each client; empty = gradients of the mean loss.
        fixed: True for numbers that stay as they are, bool [G or more, P]; only DP-SGD heeds it,
            which clips the other numbers.
        total: tensor [G, P] to write the gradients into, without DP-SGD; None = a new one.
    """

    model: TaskModel
    vectors: Tensor
    data: Sequence[Encoded]
    batches: Sequence[np.ndarray]
    private: Sequence[DPSGD] = ()
    fixed: Tensor | None = None
    total: Tensor | None = None

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of each client [G, P], noisy with DP-SGD, and its mean loss [G].

        With DP-SGD, the losses are NaN.
        """
        return self._private() if self.private else self._mean()

    def _private(self) -> tuple[Tensor, Tensor]:
        with phase("DP"):
            gradients = private_gradients(
                self.model, self.vectors, self.data, self.batches, self.private, self.fixed
            )
        return gradients, gradients.new_full((len(self.vectors),), float("nan"))

    def _mean(self) -> tuple[Tensor, Tensor]:
        total = torch.empty_like(self.vectors) if self.total is None else self.total
        return mean_gradients(self.model, self.vectors, self.data, self.batches, total)


def mean_gradients(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    total: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradient [G, P] of each client's mean loss, and the losses [G].

    Args:
        model: the task model.
        vectors: task vectors [G, P].
        data: texts of each client.
        batches: rows of each client's batch.
        total: the tensor [G, P] that is overwritten by the gradient.
    """
    total.zero_()
    sizes = vectors.new_tensor([len(batch) for batch in batches])
    losses = vectors.new_zeros(len(vectors))
    for part in model.passes(data, batches):
        losses += model.gradients(vectors, part, sizes, total)[1]
    return total, losses
