"""Sums over examples from which a head follows in closed form; they add up over clients.

With features X [n, width], targets Y [n, q] and weights w [n], W = diag(w):

- ``gram`` = Y' W Y,
- ``totals`` = Y' W X,
- ``scatter`` = X' W X - totals' gram^+ totals: the second moments that Y does not explain,
- ``energy`` = the trace of ``scatter``.

For classes and tags, Y is one-hot: ``gram`` has the counts of the classes, ``totals`` the sums of
their features, and ``scatter`` is about their means. For scores y, Y = [1, y].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Sums over the examples of one client, or of several.

    Attributes:
        rows: number n of rows of X; for tags, of words.
        gram: [q, q], float64.
        totals: [q, width], float64.
        energy: trace of ``scatter``.
        scatter: [width, width], float64; None if it is not known.
        noise: variance of the error that a codec added to each number of ``scatter``.
    """

    rows: int
    gram: np.ndarray
    totals: np.ndarray
    energy: float
    scatter: np.ndarray | None = None
    noise: float = 0.0

    @classmethod
    def of(cls, features: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Moments:
        """Return the moments of rows.

        Args:
            features: [n, width].
            targets: [n, q].
            weights: [n].
        """
        features, targets = features.astype(np.float64), targets.astype(np.float64)
        weighted = targets.T * weights
        gram, totals = weighted @ targets, weighted @ features
        # From residuals, because a difference of two large sums would lose digits.
        rest = features - targets @ fitted(gram, totals)
        scatter = (rest.T * weights) @ rest
        return cls(len(features), gram, totals, float(np.trace(scatter)), scatter)

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Return the moments of the rows of all ``parts``, at least one."""
        gram = np.sum([part.gram for part in parts], axis=0)
        totals = np.sum([part.totals for part in parts], axis=0)
        common, between = fitted(gram, totals), np.zeros((totals.shape[1],) * 2)
        for part in parts:
            # The fit of a part explains this much more than the common fit.
            apart = fitted(part.gram, part.totals) - common
            between += apart.T @ part.gram @ apart
        energy = sum(part.energy for part in parts) + float(np.trace(between))
        known = [part.scatter for part in parts if part.scatter is not None]
        scatter = np.sum([between, *known], axis=0) if len(known) == len(parts) else None
        rows, noise = sum(part.rows for part in parts), sum(part.noise for part in parts)
        return cls(rows, gram, totals, energy, scatter, noise)


def fitted(gram: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the least-squares fit of features by targets, [q, width]: means of classes.

    A class without rows gets zeros.
    """
    counts = np.diag(gram)
    if np.count_nonzero(gram) == np.count_nonzero(counts):
        inverse = np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)
        return totals * inverse[:, None]
    return np.linalg.pinv(gram, hermitian=True) @ totals
