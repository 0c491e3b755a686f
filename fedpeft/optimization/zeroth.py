"""Gradients from forward passes alone, along random directions that all sites know.

Along a direction u the slope of the loss is the scalar g = (L(v + s u) - L(v - s u)) / 2 s, and the
mean of g u over directions with independent entries of variance 1 estimates the gradient (Spall
1992; of language models: Malladi et al. 2023, arXiv 2305.17333). The seed gives the directions of
each step, so K scalars stand for an estimate of any length, as in FedKSeed (arXiv 2312.06353) and
DeComFL (arXiv 2405.15861); FeedSign (arXiv 2501.17610) sends only the sign of one scalar.

The points v + s u and v - s u are task vectors, so one pass evaluates many of them: each is a group
of its own with the same texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.optimization.optimizers import HeadRate, Steps
from fedpeft.profiling import phase
from fedpeft.projection import Projection
from fedpeft.randomness import When

_TEXTS = 512  # evaluated together, those of all points; more are not faster on a CPU


def directions(local: LocalSection, when: When, step: int, like: Tensor) -> Tensor:
    """Return the directions of a step, [local.perturbations, P], for vectors ``like`` [n, P].

    They are the same to the bit at all sites; a smaller ``local.perturbations`` gives the first of
    the same directions.
    """
    name, size = f"zeroth/{when.round}/{step}", like.shape[1]
    drawn = Projection(when.seed, name, size, local.perturbations, "normal").transposed()
    return torch.from_numpy(drawn).to(like)


def combined(slopes: Tensor, along: Tensor) -> Tensor:
    """Return gradient estimates [G, P] of slopes [G, K] and directions [K, P]."""
    return slopes @ along / len(along)


def measure(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    along: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the slope of each group's mean loss along directions, [G, K], and the losses [G].

    The loss of a group is its mean over all evaluated points.

    Args:
        model: the task model.
        vectors: task vectors [G, P].
        data: texts of each group.
        batches: rows of each group's batch.
        along: directions [K, P].
        scale: distance s of the points, in units of a direction's entries.
    """
    pairs = max(1, _TEXTS // (2 * len(vectors) * max(map(len, batches))))
    parts = [_around(model, vectors, data, batches, part, scale) for part in along.split(pairs)]
    losses = torch.cat(parts, dim=2)  # [G, 2, K]
    return (losses[:, 0] - losses[:, 1]) / (2 * scale), losses.mean((1, 2))


def _around(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    along: Tensor,
    scale: float,
) -> Tensor:
    """Return each group's mean loss at the points on both sides of it, [G, 2, K]."""
    moves = scale * torch.stack([along, -along])  # [2, K, P]
    points = (vectors[:, None, None] + moves).flatten(0, 2)
    count = 2 * len(along)
    texts = [part for part in data for _ in range(count)]
    rows = [batch for batch in batches for _ in range(count)]
    sizes = vectors.new_tensor([len(batch) for batch in rows])
    losses = vectors.new_zeros(len(points))
    with torch.no_grad(), phase("forward"):
        realised = model.realise(points)
        for batch in model.passes(texts, rows):
            losses += model.mean_losses(realised, batch, sizes)
    return losses.view(len(vectors), 2, len(along))


def replay(
    local: LocalSection,
    when: When,
    start: np.ndarray,
    slopes: np.ndarray,
    head: HeadRate | None = None,
) -> np.ndarray:
    """Return the task vector [P] that a client trained with zeroth-order gradients.

    Args:
        local: how it trained.
        when: seed and round.
        start: task vector [P] that it started from.
        slopes: of its steps [steps, local.perturbations], in the dtype of ``start``.
        head: how fast the head moves; None = as the other numbers.
    """
    vectors = torch.tensor(start)[None]
    taken = Steps(local, vectors, head=head)
    for step, row in enumerate(torch.from_numpy(slopes)):
        gradients = combined(row[None], directions(local, when, step, vectors))
        taken.take(gradients, [when.progress(step, len(slopes))])
    return vectors[0].numpy()
