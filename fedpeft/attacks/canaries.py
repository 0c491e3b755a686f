"""Membership attack: plant canaries in a client's data, train, and guess which are included.

The attacker is the server: it chooses the task vector that the client starts from, sees the vector
before and after every round, and knows all examples that may be in the data. For each canary it
guesses whether it is in the data. Differential privacy holds against such an attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

import numpy as np
import torch

from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.privacy.dpsgd import DPSGD, clipped_sums
from fedpeft.privacy.whole_weights import example_gradients
from fedpeft.randomness import When, generator
from fedpeft.training import outputs_of, train_cohort

#: Standard deviation of the start vector times the root of the backbone's width, and the factor for
#: the head. At the usual start the modifications are zero, so nearly all of a gradient belongs to
#: the head, and gradients are alike. Measured on tiny with lora.
_SPREAD, _HEAD = 1.7, 3.0
#: Prior variance of an example's weight in the data, in units of its clipped gradient. A coin has
#: 1/4; the larger value lets weights of 10 and more appear if gradients are not clipped.
_PRIOR = 100.0
_NUMERIC = 1e-6  # smallest noise variance, relative to the gradients


@dataclass(frozen=True)
class Planted:
    """A client's data with canaries. The attacker knows all of it except the coins.

    Attributes:
        candidates: all examples that may be in the data; the last m are the canaries.
        included: the coins, bool [m].
        start: the task vector [P] that the server sends first.
    """

    candidates: Encoded
    included: np.ndarray
    start: np.ndarray

    @property
    def trained(self) -> Encoded:
        """The examples that the client trains on."""
        others = np.ones(len(self.candidates) - len(self.included), dtype=bool)
        return self.candidates.select(np.flatnonzero(np.append(others, self.included)))


def plant(model: TaskModel, examples: Encoded, canaries: int, seed: int) -> Planted:
    """Turn ``canaries`` of a client's examples into canaries, and draw which are included.

    A canary is mislabeled: its label is the class with the lowest output at the start vector, so
    its gradient is large.
    """
    draw = generator(seed, "audit")
    candidates = examples.select(draw.permutation(len(examples)))
    start = attacker_start(model, seed)
    labels = candidates.labels.copy()
    labels[-canaries:] = outputs_of(model, start, candidates)[-canaries:].argmin(axis=1)
    included = draw.random(canaries) < 0.5
    return Planted(replace(candidates, labels=labels), included, start)


def attacker_start(model: TaskModel, seed: int, spread: float = _SPREAD) -> np.ndarray:
    """Return a random task vector [P] at which the examples' gradients differ a lot.

    Its values are N(0, spread^2 / width), and three times as large for the head.
    """
    layout, width = model.layout, model.backbone.shape.width
    start = generator(seed, "audit-start").normal(0, spread / sqrt(width), layout.size)
    start[layout.size - layout.head_size :] *= _HEAD
    return start.astype(model.parameters.numpy_dtype)


def train(
    model: TaskModel,
    planted: Planted,
    local: LocalSection,
    rounds: int,
    seed: int,
    private: Callable[[int], DPSGD] | None,
    done: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Train on the planted data; return the task vectors that the server sees [rounds + 1, P].

    Args:
        model: the task model.
        planted: the client's data, from ``plant``.
        local: settings of local training.
        rounds: number of rounds.
        seed: for batches without privacy.
        private: returns the DP-SGD of a round, from 1; None = without privacy.
        done: called after each round.
    """
    data, vectors = planted.trained, [planted.start]
    for number in range(1, rounds + 1):
        dpsgd = [private(number)] if private else None
        when = When(seed, number, rounds)
        vectors.append(train_cohort(model, vectors[-1], [data], [0], local, when, dpsgd).vectors[0])
        done()
    return np.stack(vectors)


def scores(
    model: TaskModel,
    planted: Planted,
    vectors: np.ndarray,
    lr: float,
    claimed: DPSGD,
    done: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Return the estimated weight of each canary in the client's data, [m].

    In a round of one step of plain SGD the client's noisy sum is u = -q n (w' - w) / lr, which
    equals G^T b + noise for the clipped gradients G [n, P] at w and the batch b [n]. As b_i is
    q s_i on average for an example of weight s_i in the data, least squares over all rounds gives

        s = (sum q^2 G S^-1 G^T + I / prior)^-1  sum q G S^-1 u,   S = q (1 - q) G^T G + v I,

    where S is the covariance of sampling and noise. It is computed from K = G G^T [n, n]:
    G S^-1 = (q (1 - q) K + v I)^-1 G. Gradients are alike, so the product G u is a weak score.

    Args:
        model: the task model.
        planted: the candidates; the coins are not used, except for their number.
        vectors: [rounds + 1, P] from ``train``; rounds of several steps are treated as one step.
        lr: learning rate times the steps of a round.
        claimed: the DP-SGD that the client claims to use.
        done: called after each round.
    """
    n, rate = len(planted.candidates), claimed.mechanism.sampling_rate
    batch = rate * (n - len(planted.included) / 2)  # expected size: the coins are unknown
    precision, evidence = np.eye(n) / _PRIOR, np.zeros(n)
    for before, after in pairwise(vectors):
        gradients = _clipped(model, before, planted.candidates, claimed)
        update = (before.astype(np.float64) - after) * (batch / lr)
        values, axes = np.linalg.eigh(gradients @ gradients.T)
        values = values.clip(min=0)
        seen = axes.T @ (gradients @ update)
        noise = _noise_variance(values, seen, update, claimed)
        weights = 1 / (rate * (1 - rate) * values + noise)
        precision += rate**2 * (axes * (values * weights)) @ axes.T
        evidence += rate * axes @ (weights * seen)
        done()
    return np.linalg.solve(precision, evidence)[-len(planted.included) :]


def _noise_variance(
    values: np.ndarray, seen: np.ndarray, update: np.ndarray, claimed: DPSGD
) -> float:
    """Return the variance of the noise in each coordinate of an update [P].

    Outside the span of the candidates' gradients an update is pure noise, so the attacker measures
    the variance there. The claimed variance is used only if the span is the whole space.

    Args:
        values: eigenvalues [n] of G G^T.
        seen: G u in the basis of its eigenvectors, [n].
        update: u, [P].
        claimed: the DP-SGD that the client claims to use.
    """
    least = _NUMERIC * float(values.mean())
    spanned = values > _NUMERIC * values.max()
    free = len(update) - int(spanned.sum())
    if free <= 0:
        return max(least, (claimed.mechanism.noise_multiplier * claimed.clip) ** 2)
    outside = float(update @ update - (seen[spanned] ** 2 / values[spanned]).sum())
    return max(least, outside / free)


def _clipped(model: TaskModel, vector: np.ndarray, examples: Encoded, claimed: DPSGD) -> np.ndarray:
    """Return each example's clipped gradient at a task vector [P], float64 [n, P]."""
    parts = gradients_at(model, vector, examples, claimed.physical_batch)
    return np.concatenate(
        [clipped_sums(part, len(part), claimed).cpu().double().numpy() for part in parts]
    )


def gradients_at(
    model: TaskModel, vector: np.ndarray, examples: Encoded, rows: int
) -> Iterator[torch.Tensor]:
    """Yield the examples' gradients at a task vector [P] in parts of at most [rows, P]."""
    vectors = torch.as_tensor(vector, device=model.backbone.device)[None]
    for start in range(0, len(examples), rows):
        chosen = np.arange(start, min(start + rows, len(examples)))
        batch = model.collate([examples], [chosen])
        yield example_gradients(model, vectors, batch)[0]
