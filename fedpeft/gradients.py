"""The gradients of one training step of a cohort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedpeft.batches.encoded import Encoded
from fedpeft.model import TaskModel
from fedpeft.privacy.dpsgd import DPSGD, private_gradients
from fedpeft.profiling import phase


def step_gradients(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    total: Tensor,
    private: Sequence[DPSGD] = (),
    fixed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of each client [G, P], noisy with DP-SGD, and its mean loss [G].

    Args:
        model: the task model that the clients share.
        vectors: task vectors [G, P].
        data: texts of each client.
        batches: rows of each client's batch.
        total: tensor [G, P] that receives the gradients, without DP-SGD.
        private: DP-SGD of each client, with which the losses are NaN; empty = without.
        fixed: True for numbers that stay as they are, bool [G or more, P]; only DP-SGD heeds it,
            which clips the other numbers.
    """
    if not private:
        return mean_gradients(model, vectors, data, batches, total)
    with phase("DP"):
        gradients = private_gradients(model, vectors, data, batches, private, fixed)
    return gradients, gradients.new_full((len(vectors),), float("nan"))


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
