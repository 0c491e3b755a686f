"""Choice of a factorization: the least noise on the sums of rounds for given limits.

Minimizes sensitivity(C)^2 * (mean squared error of all prefix sums), which is the noise of a run
with a given epsilon, by L-BFGS with exact gradients: banded Toeplitz matrices as in McKenna 2024,
arXiv 2405.15913, and BLTs as in McMahan et al. 2024, arXiv 2408.08868.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from fedpeft.errors import UserError
from fedpeft.privacy.factorization import Banded, Blt, Factorization, Limits, packed

Kind = Literal["banded", "blt"]
#: Bands of a banded matrix: as many vectors are kept as noise of the last rounds.
MOST_BANDS = 1000
#: Rounds for which a matrix is computed in seconds.
MOST_ROUNDS = 20_000
_BUFFERS = 1, 2, 3, 4
_NO_GAIN = 1.001  # more buffers must lower the noise by 0.1 %
_STEPS = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-9}
_DIVERGED = 1e6  # loss of a matrix whose inverse overflows


@lru_cache(maxsize=64)
def factorize(kind: Kind, limits: Limits) -> Factorization:
    """Return the factorization of a kind for limits; results are cached.

    Raises:
        UserError: more rounds than ``MOST_ROUNDS``.
    """
    if limits.rounds > MOST_ROUNDS:
        raise UserError(
            f"privacy.mechanism = '{kind}': expected at most {MOST_ROUNDS:,} rounds, got "
            f"{limits.rounds:,}"
        )
    if kind == "banded":
        return Factorization(_banded(limits), limits)
    matrices = [_blt(limits, buffers) for buffers in _BUFFERS]
    # With scales that add up to at most c_0 = 1, the coefficients fall, as the sensitivity needs.
    found = [Factorization(each, limits) for each in matrices if sum(each.scales) <= 1]
    least = min(each.prefix_noise for each in found)
    return next(each for each in found if each.prefix_noise <= least * _NO_GAIN)


def _banded(limits: Limits) -> Banded:
    """Return the best banded Toeplitz matrix with as many bands as the separation allows."""
    bands = min(limits.separation, limits.rounds, MOST_BANDS)

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients = np.concatenate([[1.0], free])
        column = Banded(tuple(coefficients)).column(limits.rounds)
        value, gradient = _loss(column, [1.0], coefficients, limits)
        return value, gradient[1:bands]

    best = _minimize(loss, _square_root(bands)[1:], (-1.0, 1.0))
    return Banded((1.0, *best.tolist()))


def _blt(limits: Limits, buffers: int) -> Blt:
    """Return the best BLT with d = ``buffers``; the logarithms and odds are free numbers [2 d]."""

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        matrix = _of_logarithms(free)
        scales, decays = np.array(matrix.scales), np.array(matrix.decays)
        column = matrix.column(limits.rounds)
        value, gradient = _loss(column, *_rational(scales, decays), limits)
        after = gradient[1:]  # of c_1, c_2, ...
        times = np.arange(len(after))[:, None]
        powers = decays**times
        by_scale = after @ powers
        by_decay = scales * (after[1:] @ (times[1:] * powers[:-1]))
        return value, np.concatenate([by_scale * scales, by_decay * decays * (1 - decays)])

    # Scales up to 1; odds up to those of a decay that hardly changes anything in T rounds.
    bounds = (-15.0, 0.0), (-10.0, float(np.log(100 * limits.rounds)))
    return _of_logarithms(_minimize(loss, _blt_start(limits.rounds, buffers), *bounds))


def _loss(
    column: np.ndarray, above: np.ndarray | list[float], below: np.ndarray, limits: Limits
) -> tuple[float, np.ndarray]:
    """Return log(sensitivity^2 * mean squared error) and its gradient by the column of C [T].

    Args:
        column: c [T].
        above, below: polynomials whose quotient is the generating function of C^-1.
        limits: T, b and k.
    """
    from scipy.signal import fftconvolve, lfilter

    rounds = len(column)
    sums = packed(column, limits)
    square = sums @ sums
    by_square = 2 * packed(sums[::-1], limits)[::-1] / square

    prefix = lfilter(above, below, np.ones(rounds))  # first column of A C^-1, A = prefix sums
    times = np.arange(rounds, 0, -1)
    error = times @ prefix**2
    if not np.isfinite(error):
        return _DIVERGED, np.zeros(rounds)
    # d prefix / d c_j = -(prefix * C^-1), j rounds later.
    moved = lfilter(above, below, prefix)
    by_error = -fftconvolve(2 * times * prefix, moved[::-1])[rounds - 1 :] / error
    return float(np.log(square) + np.log(error)), by_square + by_error


def _minimize(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    *bounds: tuple[float, float],
) -> np.ndarray:
    """Return the best numbers [n]; ``bounds`` are those of equal parts of them."""
    from scipy.optimize import minimize

    if not len(start):
        return start
    limits = np.repeat(bounds, len(start) // len(bounds), axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=_STEPS)
    return np.asarray(found.x)


def _square_root(rounds: int) -> np.ndarray:
    """Return the Toeplitz coefficients [T] of the root of A: optimal for the largest error.

    (1 - x)^(-1/2); Fichtenberger, Henzinger & Upadhyay 2022, arXiv 2202.11205.
    """
    odd = np.arange(1, rounds)
    return np.concatenate([[1.0], np.cumprod((2 * odd - 1) / (2 * odd))])


def _blt_start(rounds: int, buffers: int) -> np.ndarray:
    """Return logarithms of the scales and the decays' odds [2 d] that fit ``_square_root``."""
    from scipy.optimize import nnls

    decays = 1 - np.geomspace(0.5, 0.5 / max(2, rounds), buffers)
    powers = decays ** np.arange(rounds)[:, None]
    scales, _ = nnls(powers, _square_root(rounds + 1)[1:])
    return np.concatenate([np.log(np.maximum(scales, 1e-3)), np.log(decays / (1 - decays))])


def _of_logarithms(free: np.ndarray) -> Blt:
    scales, odds = np.split(np.exp(free), 2)
    return Blt(tuple(scales.tolist()), tuple((odds / (1 + odds)).tolist()))


def _rational(scales: np.ndarray, decays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return D and N, polynomials in x [d + 1], of which D / N generates C^-1.

    C is generated by 1 + sum of scale_i x / (1 - decay_i x) = N / D.
    """
    below = np.poly(decays)  # D = (1 - decay_1 x) (1 - decay_2 x) ...
    above = below.copy()
    for i, scale in enumerate(scales):
        above[1:] += scale * np.poly(np.delete(decays, i))
    return below, above
