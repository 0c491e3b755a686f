"""The Skellam mechanism: integer noise of several clients that adds up to noise of the same kind.

Agarwal, Kairouz & Liu 2021 (arXiv 2110.04995). Sk(mu) is the difference of two Poisson variables of
mean mu / 2, and has variance mu; the sum of Sk(mu_1) and Sk(mu_2) is Sk(mu_1 + mu_2).

Guarantee: two integer vectors whose difference has an L2 norm of at most D_2 and an L1 norm of at
most D_1, plus Sk(mu) in each number, have a Renyi divergence of an integer order a > 1 of at most
(corollary 3.6)

    a D_2^2 / (2 mu) + min(((2 a - 1) D_2^2 + 6 D_1) / (4 mu^2), 3 D_1 / (2 mu)).

Whole numbers have D_1 <= D_2^2, and a >= 2, so the first of the two is at most
a (2 D_2^2 + 3 D_2^2) / (4 mu^2), and the whole is at most a D_2^2 / (2 mu) (1 + 5 / (2 mu)): the
divergence of a Gaussian mechanism whose noise multiplier z has z^2 D_2^2 = mu / (1 + 5 / (2 mu)).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedpeft.privacy.noise import Words

#: Largest probability that a number of a round's sum leaves the ring and comes back at its other
#: end. That changes the sum, not its privacy.
WRAPS = 1e-12


def variance(noise_multiplier: float, squared_sensitivity: float) -> float:
    """Return mu for a mechanism with the divergences of a Gaussian one, at all integer orders.

    The larger root of mu^2 = m (mu + 5 / 2) with m = z^2 D_2^2, see above: at most m + 5 / 2.

    Args:
        noise_multiplier: z of the Gaussian mechanism.
        squared_sensitivity: D_2^2, of vectors of whole numbers.
    """
    gaussian = noise_multiplier**2 * squared_sensitivity
    return (gaussian + math.sqrt(gaussian**2 + 10 * gaussian)) / 2


def skellam(mu: float, size: int, noise: Words) -> np.ndarray:
    """Return independent numbers of Sk(mu), int64 [size].

    The inverse of the distribution function of |X|, at 63 bits of each word, and a sign. Its tail
    is summed from its small end, so a probability has a relative error of about 1e-13 and, from
    the 63 bits, an absolute one of 1e-19.
    """
    if not mu:
        return np.zeros(size, np.int64)
    words = noise.words(size)
    thresholds = _thresholds(float(mu))
    beyond = np.searchsorted(thresholds, words >> np.uint64(1), side="right")
    magnitude = (len(thresholds) - beyond).astype(np.int64)
    return np.where(words & np.uint64(1), -magnitude, magnitude)


@lru_cache(maxsize=16)
def _thresholds(mu: float) -> np.ndarray:
    """Return P(|X| > k) 2^63 of Sk(mu) for k from the largest possible to 0, uint64."""
    from scipy.special import ive

    most = math.ceil(_tail(mu, 2.0**-66)) + 1
    masses = ive(np.arange(most + 1), mu)  # exp(-mu) I_k(mu)
    tail = 2 * np.cumsum(masses[:0:-1])  # P(|X| >= k) for k = most ... 1
    return np.minimum(np.floor(tail * 2.0**63), 2.0**63 - 1024).astype(np.uint64)


def ring_bits(mu: float, furthest: int) -> int:
    """Return the bits w of a sum: beyond +-2^(w - 1) it is with a probability of at most ``WRAPS``.

    Args:
        mu: variance of the noise of all clients.
        furthest: the largest absolute value of the sum without noise.
    """
    reach = furthest + (_tail(mu, WRAPS) if mu else 0.0)
    return max(1, math.ceil(math.log2(reach + 1)) + 1)


def _tail(mu: float, probability: float) -> float:
    """Return t with P(|X| >= t) <= ``probability`` for X of Sk(mu), by Chernoff's bound.

    log E exp(s X) = mu (cosh s - 1), so log P(X >= t) <= mu (cosh s - 1) - s t, least at
    s = asinh(t / mu).
    """
    from scipy.optimize import brentq

    wanted = math.log(probability / 2)  # of one of the two sides

    def excess(t: float) -> float:
        root_less_mu = t * t / (math.hypot(mu, t) + mu)  # of mu^2 + t^2, without cancellation
        return root_less_mu - t * math.asinh(t / mu) - wanted

    high = math.sqrt(-2 * mu * wanted) - wanted
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-6 * high)) + 1e-6 * high
