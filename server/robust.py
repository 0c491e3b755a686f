"""Robust aggregation rules: the next step from updates of which some may be malicious.

All rules work on updates relative to the vector that the clients received, shape [n, P], in
float64, and count every client alike. Distances between whole task vectors would cancel in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import trimmed
from fedpeft.randomness import generator

#: Name of the center of centered clipping in the checkpoint.
CENTER = "center"
Array = np.ndarray
_STEPS = 50  # of the geometric median, at most
_CLOSE = 1e-6  # the geometric median stops when it moves less than this share of its length
_SMOOTH = 1e-6  # of the median distance: the least distance that counts
_CLIPPINGS = 3  # steps of centered clipping in a round


def median(updates: Array) -> Array:
    """Return the median of each coordinate [P] (Yin et al. 2018)."""
    return np.median(updates, axis=0)


def trimmed_mean(updates: Array, drop: int) -> Array:
    """Return the mean of each coordinate [P] without its ``drop`` largest and smallest numbers.

    Source: Yin et al. 2018.
    """
    kept = len(updates) - drop
    return np.partition(updates, (drop, kept - 1), axis=0)[drop:kept].mean(axis=0)


def geometric_median(updates: Array, steps: int = _STEPS, smooth: float | None = None) -> Array:
    """Return the point [P] with the least sum of distances to the updates.

    Smoothed Weiszfeld steps from 0 (RFA, Pillutla et al. 2022, algorithm 2).

    Args:
        updates: [n, P].
        steps: at most so many.
        smooth: smaller distances count as this one; None = a small share of the median distance.
    """
    point = np.zeros(updates.shape[1])
    for _ in range(steps):
        distances = np.linalg.norm(updates - point, axis=1)
        least = smooth if smooth is not None else _SMOOTH * np.median(distances)
        weights = 1 / np.maximum(distances, least or 1.0)
        before, point = point, weights @ updates / weights.sum()
        if np.linalg.norm(point - before) <= _CLOSE * np.linalg.norm(point):
            break
    return point


def centered_clipping(
    updates: Array, center: Array, radius: float = 0.0, steps: int = _CLIPPINGS
) -> Array:
    """Return the center [P] moved by the means of the clipped distances to it.

    Source: Karimireddy et al. 2021, section 4.

    Args:
        updates: [n, P].
        center: [P], the result of the round before, or 0.
        radius: the largest distance; 0 = the median distance of each step.
        steps: of clipping and moving.
    """
    for _ in range(steps):
        differences = updates - center
        distances = np.linalg.norm(differences, axis=1)
        limit = radius or np.median(distances)
        factors = np.minimum(1.0, limit / np.maximum(distances, np.finfo(float).tiny))
        center = center + factors @ differences / len(updates)
    return center


def distances(updates: Array) -> Array:
    """Return the squared distances [n, n] between updates; infinite on the diagonal."""
    # Less cancellation; not around the mean, which one huge update moves as far as it likes.
    centered = updates - np.median(updates, axis=0)
    products = centered @ centered.T
    squares = np.diag(products)
    between = np.maximum(squares[:, None] + squares - 2 * products, 0.0)
    np.fill_diagonal(between, np.inf)
    return between


def krum(updates: Array, malicious: int, count: int = 1) -> Array:
    """Return the mean [P] of the ``count`` updates closest to their neighbors.

    An update's score is the sum of squared distances to its n - f - 2 closest others (Blanchard et
    al. 2017). ``count`` = 1 is Krum, more is Multi-Krum.
    """
    return updates[_best(updates, malicious, count)].mean(axis=0)


def _best(updates: Array, malicious: int, count: int) -> Array:
    """Return the places of the ``count`` updates with the least scores."""
    neighbors = len(updates) - malicious - 2
    nearest = np.partition(distances(updates), neighbors - 1, axis=1)[:, :neighbors]
    return np.argsort(nearest.sum(axis=1), kind="stable")[:count]


def bulyan(updates: Array, malicious: int) -> Array:
    """Return, for each coordinate, the mean of the numbers closest to their median [P].

    Of the n - 2f updates that Multi-Krum chooses, the n - 4f closest numbers count (El Mhamdi et
    al. 2018; one selection of all n - 2f, as in Flower, instead of n - 2f selections of one).
    """
    chosen = updates[_best(updates, malicious, len(updates) - 2 * malicious)]
    away = np.abs(chosen - np.median(chosen, axis=0))
    closest = len(chosen) - 2 * malicious
    places = np.argpartition(away, closest - 1, axis=0)[:closest]
    return np.take_along_axis(chosen, places, axis=0).mean(axis=0)


def nearest_neighbor_mixing(updates: Array, malicious: int) -> Array:
    """Return each update's mean with its nearest others, n - f in all, shape [n, P].

    Source: Allouah et al. 2023, algorithm 2.
    """
    between = distances(updates)
    np.fill_diagonal(between, -1.0)
    count = len(updates) - malicious
    members = np.zeros_like(between)
    nearest = np.argpartition(between, count - 1, axis=1)[:, :count]
    np.put_along_axis(members, nearest, 1 / count, axis=1)
    return members @ updates


def bucketing(updates: Array, size: int, draw: np.random.Generator) -> Array:
    """Return the means of random buckets of ``size`` updates, the last may be smaller.

    Shape [ceil(n / size), P]. Source: Karimireddy et al. 2022, algorithm 1.
    """
    mixed = updates[draw.permutation(len(updates))]
    starts = np.arange(0, len(mixed), size)
    sizes = np.diff([*starts, len(mixed)])
    return np.add.reduceat(mixed, starts, axis=0) / sizes[:, None]


def robust_step(
    experiment: Experiment, number: int, updates: Array, memory: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Return the step [P] of ``federation.strategy`` after ``federation.mixing``, and its memory.

    Args:
        experiment: all settings.
        number: of the round, from 1.
        updates: changes of the task vector, float64 [n, P].
        memory: that of the last round; other names in it are ignored.
    """
    federation = experiment.federation
    malicious = federation.byzantine
    if federation.mixing == "nnm":
        updates = nearest_neighbor_mixing(updates, malicious)
    elif federation.mixing == "bucketing":
        updates = bucketing(
            updates, federation.bucket, generator(experiment.seed, "bucketing", number)
        )
    if federation.strategy == "centered_clipping":
        center = memory.get(CENTER, np.zeros(updates.shape[1]))
        center = centered_clipping(updates, center, federation.radius)
        return center, {CENTER: center}
    rules: dict[str, Callable[[], Array]] = {
        "fedmedian": lambda: median(updates),
        "fedtrimmedavg": lambda: trimmed_mean(updates, trimmed(federation, len(updates))),
        "geometric_median": lambda: geometric_median(updates),
        "krum": lambda: krum(updates, malicious),
        "multikrum": lambda: krum(updates, malicious, len(updates) - malicious),
        "bulyan": lambda: bulyan(updates, malicious),
    }
    return rules[federation.strategy](), {}
