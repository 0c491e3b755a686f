"""Attacks: updates of malicious clients, made from the honest ones of the round.

All attackers of a round send the same. Updates are changes of the task vector, float64 [n, P].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Aggregate = Callable[[Array], Array]  # updates [n, P] -> step [P]
#: Strengths that an optimal attack compares, of either sign.
_TRIALS = np.geomspace(0.05, 50.0, 48)


def gaussian(honest: Array, strength: float, draw: np.random.Generator) -> Array:
    """Return noise [P] that is ``strength`` times as long as the mean honest update."""
    noise = draw.standard_normal(honest.shape[1])
    length = strength * np.linalg.norm(honest, axis=1).mean()
    return noise * (length / np.linalg.norm(noise))


def little_is_enough(honest: Array, strength: float) -> Array:
    """Return the mean [P] plus ``strength`` standard deviations (Baruch et al. 2019)."""
    deviation = honest.std(axis=0, ddof=1) if len(honest) > 1 else 0.0
    return honest.mean(axis=0) + strength * deviation


def largest_unseen(clients: int, attackers: int) -> float:
    """Return the standard deviations that ALIE may add (Baruch et al. 2019, algorithm 3).

    Enough honest clients lie further from the mean for a majority together with the attackers.
    """
    supporters = clients // 2 + 1 - attackers
    honest = clients - attackers
    share = (honest - supporters) / honest
    from scipy.special import ndtri

    return float(ndtri(np.clip(share, 0.5, 0.999)))


def inner_product(honest: Array, strength: float) -> Array:
    """Return minus ``strength`` times the honest mean [P] (IPM, Xie et al. 2020)."""
    return -strength * honest.mean(axis=0)


def optimal(
    attack: Callable[[Array, float], Array], honest: Array, attackers: int, aggregate: Aggregate
) -> Array:
    """Return the attack [P] of the strength that moves the aggregate furthest from honest mean.

    The goal of Shejwalkar & Houmansadr 2021, equation 1.
    """
    mean = honest.mean(axis=0)

    def moved(strength: float) -> float:
        sent = np.tile(attack(honest, strength), (attackers, 1))
        return float(np.linalg.norm(aggregate(np.concatenate([honest, sent])) - mean))

    return attack(honest, max([*_TRIALS, *-_TRIALS], key=moved))


def mimicked(honest: Array) -> int:
    """Return the place of the honest update that all attackers copy.

    It is furthest along the direction of the largest variance, so its overweight hurts most
    (Karimireddy et al. 2022, appendix B).
    """
    centered = honest - honest.mean(axis=0)
    _, vectors = np.linalg.eigh(centered @ centered.T)  # of the small side
    return int(np.abs(vectors[:, -1]).argmax())
