"""Tails of hypergeometric and binomial distributions, for ``fedpeft.secure.thresholds``."""

from __future__ import annotations

from functools import lru_cache
from math import log, sqrt

import numpy as np


def hypergeometric(clients: int, marked: int, drawn: int) -> np.ndarray:
    """Return the probabilities [drawn + 1] of 0, 1, ... marked ones among ``drawn`` of all."""
    counts = np.arange(drawn + 1)
    chosen = _log_binomial(marked, counts) + _log_binomial(clients - marked, drawn - counts)
    return np.exp(chosen - _log_binomial(clients, np.array(drawn)))


def binomial(trials: int, probability: float) -> np.ndarray:
    """Return the probabilities [trials + 1] of 0, 1, ... successes."""
    from scipy.special import xlog1py, xlogy

    counts = np.arange(trials + 1)
    logs = xlogy(counts, probability) + xlog1py(trials - counts, -probability)
    return np.exp(_log_binomial(trials, counts) + logs)


@lru_cache(maxsize=4)
def thinning(most: int, probability: float) -> np.ndarray:
    """Return the probabilities [most + 1, most + 1] that j of i stay, each with a probability."""
    rows = [binomial(count, probability) for count in range(most + 1)]
    return np.stack([np.pad(row, (0, most + 1 - len(row))) for row in rows])


def exceeded(probabilities: np.ndarray, failure: float) -> int:
    """Return the smallest number that is exceeded with probability ``failure`` at most."""
    above = np.append(np.cumsum(probabilities[:0:-1])[::-1], 0.0)
    return int(np.argmax(above <= failure))


def reached(probabilities: np.ndarray, failure: float) -> int:
    """Return the largest number that is missed with probability ``failure`` at most."""
    below = np.append(0.0, np.cumsum(probabilities[:-1]))
    return int(np.flatnonzero(below <= failure)[-1])


def sum_exceeded(mean: float, failure: float) -> float:
    """Return a number that a sum with this mean exceeds with probability ``failure`` at most.

    Chernoff's bound exp(-d^2 / (2 m + d)) of m + d, for sums of independent hypergeometric numbers:
    their moments are at most binomial ones (Hoeffding 1963, theorem 4).
    """
    size = log(1 / failure)
    return mean + (size + sqrt(size * size + 8 * mean * size)) / 2


def _log_binomial(total: int, chosen: np.ndarray) -> np.ndarray:
    """Return the logarithms of binomial coefficients; -inf where they are 0."""
    from scipy.special import gammaln  # takes a tenth of a second to import

    inside = np.clip(chosen, 0, total)
    logs = gammaln(total + 1) - gammaln(inside + 1) - gammaln(total - inside + 1)
    return np.where(inside == chosen, logs, -np.inf)
