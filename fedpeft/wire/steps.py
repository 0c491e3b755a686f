"""Whole steps of the grid of ``uniform``, of a bounded norm, for sums with noise.

Noise for privacy is matched to the norm of what is summed, and rounding at random lengthens a
vector. ``bounded`` draws the rounding again until the norm is within ``norm_limit`` (conditional
rounding: Kairouz, Liu & Steinke 2021, arXiv 2102.06387, section 4.1). Zero is a step, unlike in
``uniform``: an update of zero then is a part of zero in the sum.
"""

from __future__ import annotations

import math

import numpy as np

from fedpeft.wire import uniform

_TRIES = 64  # each is within the limit with probability 0.39 or more, so all fail once in 10^13


def furthest(bits: int) -> int:
    """Return the outermost step: steps go from -2^(bits - 1) to 2^(bits - 1)."""
    return 1 << (bits - 1)


def norm_limit(size: int, bits: int) -> float:
    """Return the square of the largest norm of the steps of a vector [n = ``size``].

    With R = the clip norm in steps, which depends on n and bits only, R^2 + n / 4 + R + sqrt(n) / 2
    (Kairouz et al. 2021, theorem 1, with beta = exp(-1/2)): rounding at random is within it with a
    probability of at least 1 - beta.
    """
    radius = 1 / uniform.distance(size, bits, 1.0)
    return radius**2 + size / 4 + radius + math.sqrt(size) / 2


def bounded(places: np.ndarray, bits: int, own: np.random.Generator) -> np.ndarray:
    """Return places [n] rounded to whole steps, int64 [n].

    Guarantee, for any finite places and whatever ``own`` draws: the squares of the steps add up to
    at most ``norm_limit``, and their absolute values to at most min(sqrt(n L), L) with L that
    limit. Proof: a result is returned only after its sum of squares, an exact sum of integers, has
    been compared with L. By Cauchy and Schwarz |k|_1 <= sqrt(n) |k|_2, and |k_i| <= k_i^2 because
    k_i is an integer.

    Args:
        places: rotated numbers in steps.
        bits: see ``uniform``; numbers beyond the outermost step are clamped to it.
        own: draws the rounding.
    """
    limit, most = norm_limit(len(places), bits), furthest(bits)
    floor = np.floor(places)
    for _ in range(_TRIES):
        drawn = floor + (own.random(len(places)) < places - floor)
        steps = np.clip(drawn, -most, most).astype(np.int64)
        if int(steps @ steps) <= limit:
            return steps
    steps = np.clip(np.trunc(places), -most, most).astype(np.int64)  # no longer than the places
    return steps if int(steps @ steps) <= limit else np.zeros_like(steps)
