"""Canaries in one run of the real training code, and an attack that looks for them.

The attacker is the server: it chooses the task vector that a client starts from, sees the vector
before and after every round, knows all examples that may be in the data, and wants to know of each
canary whether it is. Differential privacy holds against all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

import numpy as np
import torch

from fedpeft.model import TaskModel
from fedpeft.privacy.example import DPSGD, clipped_sums
from fedpeft.privacy.whole_weights import example_gradients
from fedpeft.randomness import generator
from fedpeft.settings import LocalSection
from fedpeft.tasks.batching import collate
from fedpeft.tasks.encoding import Encoded
from fedpeft.training import When, outputs_of, train_cohort

#: Deviation of the start vector's numbers times the root of the backbone's width, and how much more
#: the head's have. At the usual start methods change nothing yet, nearly all of a gradient is the
#: head's, and all gradients look alike. Measured on tiny with lora.
_SPREAD, _HEAD = 1.7, 3.0
#: Prior variance of an example's weight in the data, in units of its clipped gradient. A coin's is
#: 1/4; so much more, that weights of ten and above show where gradients are not cut.
_PRIOR = 100.0
_NUMERIC = 1e-6  # least noise variance, relative to the gradients


@dataclass(frozen=True)
class Planted:
    """A client's data with canaries, as the attacker knows it but for the coins.

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
    """Make canaries of so many of a client's examples of classes, and draw who is in.

    A canary is mislabelled: it has the class that the start vector thinks least of, so its
    gradient is large.
    """
    draw = generator(seed, "audit")
    candidates = examples.select(draw.permutation(len(examples)))
    start = attacker_start(model, seed)
    labels = candidates.labels.copy()
    labels[-canaries:] = outputs_of(model, start, candidates)[-canaries:].argmin(axis=1)
    included = draw.random(canaries) < 0.5
    return Planted(replace(candidates, labels=labels), included, start)


def attacker_start(model: TaskModel, seed: int, spread: float = _SPREAD) -> np.ndarray:
    """Return a random task vector [P] from which examples' gradients differ much.

    Its numbers are N(0, spread^2 / width), those of the head three times as large.
    """
    layout, width = model.layout, model.backbone.shape.width
    start = generator(seed, "audit-start").normal(0, spread / sqrt(width), layout.size)
    start[layout.size - layout.head_size :] *= _HEAD
    return start.astype(model.numpy_dtype)


def train(
    model: TaskModel,
    planted: Planted,
    local: LocalSection,
    rounds: int,
    seed: int,
    private: Callable[[int], DPSGD] | None,
    done: Callable[[int], None] = lambda round: None,
) -> np.ndarray:
    """Train the planted client for some rounds; return the vectors [rounds + 1, P] seen.

    Args:
        model: the task model.
        planted: what ``plant`` made.
        local: how to train.
        rounds: how often.
        seed: of batches without privacy.
        private: the DP-SGD of a round, which counts from 1.
        done: called after each round.
    """
    data, vectors = planted.trained, [planted.start]
    for round in range(1, rounds + 1):
        how = [private(round)] if private else None
        when = When(seed, round, rounds)
        vectors.append(train_cohort(model, vectors[-1], [data], [0], local, when, how).vectors[0])
        done(round)
    return np.stack(vectors)


def scores(
    model: TaskModel,
    planted: Planted,
    vectors: np.ndarray,
    lr: float,
    claimed: DPSGD,
    done: Callable[[int], None] = lambda round: None,
) -> np.ndarray:
    """Return how much of each canary is in the updates, [m].

    In a round of one step of plain SGD the client's noisy sum is u = -q n (w' - w) / lr, which is
    G^T b + noise of the clipped gradients G [n, P] at w and the batch b [n]. With b_i = q s_i on
    average for an example of weight s_i in the data, the least squares of all rounds together are

        s = (sum q^2 G S^-1 G^T + I / prior)^-1  sum q G S^-1 u,   S = q (1 - q) G^T G + v I,

    where S is the covariance of sampling and noise. All of it is done on K = G G^T [n, n]:
    G S^-1 = (q (1 - q) K + v I)^-1 G. Since gradients are alike, a plain product G u says little.

    Args:
        model: the task model.
        planted: the candidates; the coins are not looked at.
        vectors: [rounds + 1, P] of ``train``; rounds of more than one step are taken as one.
        lr: learning rate times the steps of a round.
        claimed: how the client says it trains.
        done: called after each round.
    """
    n, rate = len(planted.candidates), claimed.mechanism.sampling_rate
    batch = rate * (n - len(planted.included) / 2)  # expected: the coins are not known
    precision, evidence = np.eye(n) / _PRIOR, np.zeros(n)
    for round, (before, after) in enumerate(pairwise(vectors), start=1):
        gradients = _clipped(model, before, planted.candidates, claimed)
        update = (before.astype(np.float64) - after) * (batch / lr)
        values, axes = np.linalg.eigh(gradients @ gradients.T)
        values = values.clip(min=0)
        seen = axes.T @ (gradients @ update)
        noise = _noise_variance(values, seen, update, claimed)
        weights = 1 / (rate * (1 - rate) * values + noise)
        precision += rate**2 * (axes * (values * weights)) @ axes.T
        evidence += rate * axes @ (weights * seen)
        done(round)
    return np.linalg.solve(precision, evidence)[-len(planted.included) :]


def _noise_variance(
    values: np.ndarray, seen: np.ndarray, update: np.ndarray, claimed: DPSGD
) -> float:
    """Return the variance of the noise in each coordinate of an update [P].

    What of the update lies outside the span of the candidates' gradients is nothing but noise, so
    the attacker measures it and needs to trust no claim. Only where the span is everything it is
    the claimed one.

    Args:
        values: eigenvalues [n] of G G^T.
        seen: G u along its eigenvectors, [n].
        update: u, [P].
        claimed: how the client says it trains.
    """
    least = _NUMERIC * float(values.mean())
    spans = values > _NUMERIC * values.max()
    free = len(update) - int(spans.sum())
    if free <= 0:
        return max(least, (claimed.mechanism.noise_multiplier * claimed.clip) ** 2)
    outside = float(update @ update - (seen[spans] ** 2 / values[spans]).sum())
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
    """Yield the examples' gradients at a task vector [P], so many rows at a time: [rows, P]."""
    vectors = torch.as_tensor(vector, device=model.backbone.device)[None]
    pad_id = model.backbone.tokenizer.pad_token_id
    for start in range(0, len(examples), rows):
        chosen = np.arange(start, min(start + rows, len(examples)))
        batch = collate([examples], [chosen], pad_id, vectors.device, model.dtype)
        yield example_gradients(model, vectors, batch)[0]
