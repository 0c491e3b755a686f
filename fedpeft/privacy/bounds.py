"""Upper bounds of epsilon for Poisson-subsampled Gaussian mechanisms, by PRV and by RDP.

PRV: Gopi, Lee & Wutschitz 2021 (arXiv 2106.02848), built on prv-accountant. RDP: Mironov, Talwar &
Zhang 2019 (arXiv 1908.10530), with Opacus's divergences. Both bound the removal of an example,
which has the larger epsilon.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from prv_accountant.discrete_privacy_random_variable import DiscretePrivacyRandomVariable
    from prv_accountant.domain import Domain

#: Noise multipliers below this count as no noise.
LEAST_NOISE = 1e-3
#: Grid points of PRV, summed over the different mechanisms: 0.3 to 0.5 s on one core.
_POINTS = 2**18 - 8  # a power of two with the points at the ends
#: PRV's error relative to epsilon, if the grid has enough points for it.
_ERROR = 0.005
_DELTA_ERROR = 1e-3  # relative to delta, as in Gopi et al.
_MOST_EPSILON = 350.0  # limit of PRV's grid; exp of twice this still fits in a float64
_MOST_DIFFERENT = 16  # mechanisms in one PRV; the grids of more would be too coarse
#: Integer orders only: the series for other orders cancels. Opacus's binomials end at 1029.
_ORDERS = (*range(2, 64), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024)

Runs = tuple[tuple[float, float, int], ...]  # (noise multiplier, sampling rate, steps), sorted


def prv_bound(
    runs: Runs, delta: float, error: float | None, rdp: float
) -> tuple[float, float] | None:
    """Return PRV's (upper bound, estimate), or None if it is inaccurate or takes too long.

    The method of PRVAccountant (Gopi et al. 2021, theorem 5.5 and remark 5.6), except for the mean
    (see ``_discrete``).

    Args:
        runs: at least one.
        delta: in (0, 1); its error is a thousandth of it.
        error: in epsilon; None = 0.5 % of ``rdp``, or what the grid requires if that is more.
        rdp: the bound by RDP, finite.
    """
    import numpy as np
    from prv_accountant.composers import Heterogeneous
    from prv_accountant.domain import Domain

    total = sum(steps for _, _, steps in runs)
    delta_error = delta * _DELTA_ERROR
    # The rounding errors of so many convolutions must stay below delta_error.
    if len(runs) > _MOST_DIFFERENT or total * np.finfo(np.longdouble).eps > delta_error:
        return None
    single = (rdp_bound(((sigma, q, 1),), delta_error / 8 / total) for sigma, q, _ in runs)
    reach = max(rdp_bound(runs, delta_error / 4), *single) + 3
    if reach > _MOST_EPSILON:
        return None
    scale = math.sqrt(total / 2 * math.log(12 / delta_error))  # error over grid spacing
    finest = 2 * reach * scale * len(runs) / _POINTS
    error = error or max(_ERROR * rdp, finest)
    if error < finest / 16:  # a caller's error may take 16 times the usual time and memory
        return None
    # Widened to a power of two: the time of an FFT depends on the factors of its length.
    half = 2 ** math.ceil(math.log2(reach * scale / error + 2)) - 1.5  # in grid spacings
    mesh = error / scale
    domain = Domain.create_aligned(-half * mesh, half * mesh, mesh)
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            discrete = [_discrete(sigma, q, domain) for sigma, q, _ in runs]
            composed = Heterogeneous(discrete).compute_composition([run[2] for run in runs])
            _, estimate, upper = composed.compute_epsilon(delta, delta_error, error)
    # Raised for a delta beyond the grid, rounding errors near delta, and overflow.
    except (RuntimeError, ValueError, FloatingPointError):
        return None
    return (max(upper, 0.0), max(estimate, 0.0)) if math.isfinite(upper) else None


def _discrete(sigma: float, q: float, domain: Domain) -> DiscretePrivacyRandomVariable:
    """Return one step's PRV on a grid, shifted to its exact mean (algorithm 2).

    prv-accountant's discretizer computes the mean by adaptive quadrature over the whole grid and
    misses narrow steps: at q = 0.134, sigma = 4.86 and 118,000 steps it is silently wrong by more
    than three times the error in epsilon that the bound allows for.
    """
    import numpy as np
    from prv_accountant import PoissonSubsampledGaussianMechanism
    from prv_accountant.discrete_privacy_random_variable import DiscretePrivacyRandomVariable

    points, half = domain.ts(), domain.dt() / 2
    edges = np.append(points - half, points[-1] + half).clip(points[0], points[-1])
    below = PoissonSubsampledGaussianMechanism(q, sigma).cdf(edges)
    masses = np.diff(below) / (below[-1] - below[0])
    shift = float(_mean(sigma, q) - points @ masses)
    if not abs(shift) < half:
        raise RuntimeError("the PRV does not fit its grid")
    return DiscretePrivacyRandomVariable(masses, domain.shift_right(shift))


def _mean(sigma: float, q: float) -> float:
    """Return the mean of the PRV: KL(q N(1, sigma^2) + (1 - q) N(0, sigma^2) || N(0, sigma^2)).

    Uses the trapezoidal rule, which converges exponentially for smooth functions that vanish at
    both ends. The mass beyond 12 sigma is 1e-33.
    """
    import numpy as np

    if q == 1:
        return 0.5 / sigma**2
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 20_001)
    densities = (np.exp(-(((x - shift) / sigma) ** 2) / 2) for shift in (0, 1))
    loss = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    without, added = densities
    weights = (1 - q) * without + q * added
    return float(weights @ loss * (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi)))


def rdp_bound(runs: Runs, delta: float) -> float:
    """Return RDP's upper bound of epsilon; infinite without noise.

    The conversion to epsilon is theorem 21 of Balle et al. 2020 (arXiv 1905.09982).
    """
    import numpy as np

    if runs[0][0] < LEAST_NOISE:  # sorted: the first is the smallest
        return math.inf
    orders = np.array(_ORDERS, dtype=float)
    divergence = sum(steps * _divergences(sigma, q) for sigma, q, steps in runs)
    epsilons = divergence - np.log(delta * orders) / (orders - 1) + np.log1p(-1 / orders)
    return max(float(epsilons.min()), 0.0)


@lru_cache(maxsize=4096)
def _divergences(sigma: float, q: float) -> np.ndarray:
    """Return the Renyi divergence of one step at each order."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=list(_ORDERS))
