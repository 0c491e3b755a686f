"""Lower bounds of epsilon from independent trials: a unit is in the data by a fair coin, or not.

(epsilon, delta)-privacy limits every test for "in": P[positive | in] <= e^epsilon P[positive | out]
+ delta (Kairouz, Oh & Viswanath 2015, arXiv 1311.0776, theorem 2.1). A Gaussian mechanism with
sensitivity over noise mu limits it further: quantile(P[positive | in]) <= mu + quantile(P[positive
| out]) (Dong, Roth & Su 2019, arXiv 1905.02383, section 2.2). Both probabilities are bounded by
Clopper & Pearson 1934, as in Nasr et al. 2023, "Tight auditing of differentially private machine
learning" (arXiv 2302.07956).

A test is a threshold on a score. It must not depend on the trials that it is counted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpeft.privacy.accounting import Mechanism, spent

_LEAST_MU = 1e-3  # sensitivity over noise that counts as no leak


@dataclass(frozen=True)
class Counts:
    """Outcomes of a test.

    Attributes:
        true: positive trials with the unit in the data.
        included: trials with the unit in the data.
        false: positive trials without it.
        excluded: trials without it.
    """

    true: int
    included: int
    false: int
    excluded: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """Return a lower bound of P[positive | in] and an upper bound of P[positive | out].

        Both hold together with ``confidence``.
        """
        from scipy.special import betaincinv

        each = (1 - confidence) / 2
        low, high = 0.0, 1.0
        if self.true:
            low = float(betaincinv(self.true, self.included - self.true + 1, each))
        if self.false < self.excluded:
            high = float(betaincinv(self.false + 1, self.excluded - self.false, 1 - each))
        return low, high


def counts_of(scores: np.ndarray, included: np.ndarray, threshold: float) -> Counts:
    """Return the outcomes of the test that is positive at scores of at least ``threshold``.

    Args:
        scores: [n], higher = more likely in.
        included: the coins, bool [n].
        threshold: fixed before the scores were known.
    """
    positive, total = scores >= threshold, int(included.sum())
    true = int((positive & included).sum())
    return Counts(true, total, int(positive.sum()) - true, len(scores) - total)


def threshold_of(
    scores: np.ndarray, included: np.ndarray, bound: Callable[[Counts], float]
) -> float:
    """Return the threshold with the largest bound on these trials, for other trials."""
    candidates = np.unique(np.quantile(scores, 1 - np.geomspace(1 / len(scores), 0.9, 100)))
    bounds = [bound(counts_of(scores, included, each)) for each in candidates]
    return float(candidates[int(np.argmax(bounds))])


def middle_of(scores: np.ndarray, included: np.ndarray) -> float:
    """Return the threshold between the mean scores, which is best for ``gaussian_bound``."""
    return float(scores[included].mean() + scores[~included].mean()) / 2


def lower_bound(counts: Counts, delta: float, confidence: float) -> float:
    """Return the largest epsilon that the outcomes refute at delta; 0 if they refute none.

    Guarantee: if the mechanism is (epsilon, delta)-private and the trials are independent, the
    result is at most epsilon with probability ``confidence``. It cannot exceed about
    log(excluded / 3.7) at a confidence of 95 %.
    """
    low, high = counts.rates(confidence)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def gaussian_bound(counts: Counts, delta: float, confidence: float) -> float:
    """Return the epsilon at delta of the least private Gaussian mechanism that is not refuted.

    Guarantee: as ``lower_bound``, if the mechanism is Gaussian. It is tighter because a Gaussian
    mechanism limits all tests, and most those whose outcomes are frequent.
    """
    from scipy.special import ndtri

    low, high = counts.rates(confidence)
    mu = float(ndtri(low) - ndtri(high)) if low > 0 and high < 1 else 0.0
    if mu < _LEAST_MU:
        return 0.0
    total = spent([Mechanism(1 / mu, 1.0, 1)], delta)
    return max(0.0, total.epsilon - 2 * total.epsilon_error)
