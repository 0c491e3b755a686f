"""A linear head in closed form from the moments of its features.

Scores: ridge regression. Classes and tags: linear discriminant analysis with a ridge added to the
covariance. The ridge is the one with the least error by generalized cross-validation of the
least-squares fit (Golub, Heath and Wahba 1979), which follows from the moments: no data is held
out, and nothing is searched on a dev set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.heads.moments import Moments, fitted
from fedpeft.tasks.base import Kind

#: Ridges tried, relative to the mean variance of a feature.
_LEAST, _MOST, _TRIED = 1e-2, 1e4, 120
#: Variance of a feature relative to its mean square that may be rounding of float32.
_ROUNDING = 1e-12
#: Mean logit of the true class above the mean of all, per log of the number of classes, at most.
#: Covariances differ between classes, so with many of them the discriminants are overconfident: the
#: least loss on new texts was at 2.9 to 4.6 for 6 to 150 classes, and below 2.8 for two.
_CONFIDENCE = 4.0
#: Variance along the differences of means, relative to the mean variance of a feature: 5 to 10 on
#: MiniLM.
_ALONG_MEANS = 5.0


@dataclass(frozen=True)
class Fit:
    """A linear head: outputs ``weight @ (x - center) + level`` of features x.

    Attributes:
        weight: [C, width].
        level: [C].
        center: mean of the features, [width].
        root: symmetric root of their covariance, [width, width]. The outputs of two heads differ by
            ``|(weight - other) @ root|`` in the quadratic mean.
    """

    weight: np.ndarray
    level: np.ndarray
    center: np.ndarray
    root: np.ndarray

    def bias(self, weight: np.ndarray) -> np.ndarray:
        """Return the bias [C] with which ``weight`` has this head's outputs at the center."""
        return self.level - weight @ self.center


def closed_form(kind: Kind, moments: Moments, free: np.ndarray | None = None) -> Fit:
    """Return the head of the moments of all examples.

    A class that no example has gets weights 0 and the odds of half an example.

    Args:
        kind: "classes", "tags" or "score".
        moments: of all examples.
        free: a direction of length 1 in which weights are not shrunk, [width]: with the largest
            ridge the head reads this direction alone.
    """
    return _regression(moments, free) if kind == "score" else _discriminant(moments, free)


def _discriminant(moments: Moments, free: np.ndarray | None) -> Fit:
    counts = np.diag(moments.gram)
    count, share = counts.sum(), counts / counts.sum()
    center = moments.totals.sum(0) / count
    means = np.where(share[:, None] > 0, fitted(moments.gram, moments.totals) - center, 0.0)
    slopes = share[:, None] * means  # covariances of the classes with the features
    within = _within(moments, count)
    covariance, variance = within + means.T @ slopes, float(np.sum(share * (1 - share)))
    ridge = best_ridge(covariance, slopes, variance, moments, count, free)
    weight = np.linalg.solve(within + ridge * _shrunk(len(within), free), means.T).T
    level = np.log(np.maximum(counts, 0.5) / count) - 0.5 * (means * weight).sum(1)
    scale = _scale(share, means @ weight.T + level)
    return Fit(scale * weight, scale * level, center, _root(covariance, ridge))


def _regression(moments: Moments, free: np.ndarray | None) -> Fit:
    count, total = moments.gram[0]
    level, center = total / count, moments.totals[0] / count
    slopes = (moments.totals[1] / count - level * center)[None]
    variance = float(moments.gram[1, 1] / count - level**2)
    apart = fitted(moments.gram, moments.totals)[1]  # change of the features with the score
    covariance = _within(moments, count) + variance * np.outer(apart, apart)
    ridge = best_ridge(covariance, slopes, variance, moments, count, free)
    weight = np.linalg.solve(covariance + ridge * _shrunk(len(covariance), free), slopes.T).T
    return Fit(weight, np.array([level]), center, _root(covariance, ridge))


def _root(covariance: np.ndarray, ridge: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T


def _shrunk(width: int, free: np.ndarray | None) -> np.ndarray:
    """Return the projection on the directions in which weights are shrunk, [width, width].

    The free direction is shrunk a little: it may have no variance.
    """
    return np.eye(width) - (0 if free is None else (1 - _ROUNDING) * np.outer(free, free))


def _within(moments: Moments, count: float) -> np.ndarray:
    """Return the covariance that the targets do not explain, [width, width]."""
    if moments.scatter is None:
        width = moments.totals.shape[1]
        return np.eye(width) * (_ALONG_MEANS * moments.energy / (count * width))
    values, vectors = np.linalg.eigh(moments.scatter / count)
    return (vectors * np.maximum(values, 0)) @ vectors.T  # noise of a codec makes some negative


def best_ridge(
    covariance: np.ndarray,
    slopes: np.ndarray,
    variance: float,
    moments: Moments,
    count: float,
    free: np.ndarray | None = None,
) -> float:
    """Return the ridge whose least-squares fit has the least error on new examples.

    Generalized cross-validation: the mean squared error, divided by the squared share of the rows
    that is left as degrees of freedom. Errors of a codec in the covariance look like directions
    without variance, which no fit may use: the ridge is at least the radius of their spectrum
    divided by two, sigma sqrt(width) (Wigner 1958).

    Args:
        covariance: of the features, [width, width].
        slopes: covariances of each target with the features, [C, width].
        variance: summed variance of the targets.
        moments: of the examples.
        count: their summed weights.
        free: see ``closed_form``.
    """
    if free is not None:  # what it explains is no part of the choice
        along, spread = covariance @ free, max(float(free @ covariance @ free), 1e-300)
        variance -= float(np.square(slopes @ free).sum()) / spread
        slopes = slopes - np.outer(slopes @ free, along) / spread
        covariance = covariance - np.outer(along, along) / spread
    values, vectors = np.linalg.eigh(covariance)
    values, squares = np.maximum(values, 0), np.square(slopes @ vectors).sum(0)
    squared = moments.energy + np.sum(moments.totals * fitted(moments.gram, moments.totals))
    least = max(
        _LEAST * values.mean(),
        np.sqrt(moments.noise * len(values)) / count,
        _ROUNDING * squared / (count * len(values)) or 1.0,
    )
    ridges = least * np.geomspace(1, _MOST, _TRIED)[:, None]
    missed = variance - (squares * (values + 2 * ridges) / np.square(values + ridges)).sum(1)
    fixed = 1 + (free is not None)
    left = 1 - (fixed + (values / (values + ridges)).sum(1)) / moments.rows
    known = (left > 0) & (missed > 0)
    errors = np.divide(missed, np.square(left), out=np.full_like(missed, np.inf), where=known)
    return float(ridges[errors.argmin(), 0]) if known.any() else float(ridges[-1, 0])


def _scale(share: np.ndarray, logits: np.ndarray) -> float:
    """Return a factor of at most 1 for logits [C, C] of the means of classes."""
    above = float(share @ (np.diag(logits) - logits.mean(1)))
    return min(1.0, _CONFIDENCE * np.log(len(share)) / max(above, 1e-12))
