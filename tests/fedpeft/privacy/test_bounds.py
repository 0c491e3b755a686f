"""The two bounds of epsilon, against closed forms, limits and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedpeft.privacy.bounds import prv_bound, rdp_bound

DELTA = 1e-5


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a Gaussian mechanism with sensitivity over noise ``mu``, exactly.

    Balle & Wang 2018 (arXiv 1805.06530), theorem 8. Without sampling, n steps are one with
    mu = sqrt(n) / sigma.
    """

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return first + math.log(-math.expm1(second - first)) - math.log(delta)

    return brentq(excess, 0, mu * (mu + 20), xtol=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
@pytest.mark.parametrize(
    ("sigma", "steps"), [(0.3, 1), (0.7, 3), (5.0, 10), (30.0, 1000), (200.0, 100_000)]
)
def test_without_sampling_the_true_epsilon_lies_in_the_prv_s_error(
    sigma: float, steps: int, delta: float
) -> None:
    true = gaussian_epsilon(math.sqrt(steps) / sigma, delta)
    runs = ((sigma, 1.0, steps),)
    rdp = rdp_bound(runs, delta)
    bound = prv_bound(runs, delta, None, rdp)
    assert bound is not None
    upper, estimate = bound
    assert true <= upper <= 1.05 * true
    assert estimate == pytest.approx(true, abs=(upper - estimate) / 5)
    assert upper < rdp


def test_mechanisms_that_differ_are_composed() -> None:
    runs = ((1.5, 1.0, 1), (3.0, 1.0, 4), (8.0, 1.0, 20))
    mu = math.sqrt(sum(steps / sigma**2 for sigma, _, steps in runs))
    bound = prv_bound(runs, DELTA, 0.02, rdp_bound(runs, DELTA))
    assert bound is not None and bound[1] == pytest.approx(gaussian_epsilon(mu, DELTA), abs=2e-3)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(1.0, 0.01, 1000), (0.6, 1e-3, 300), (2.0, 0.5, 30), (0.5, 0.1, 3), (10.0, 0.1, 500)],
)
def test_rdp_is_the_looser_bound(sigma: float, rate: float, steps: int) -> None:
    runs = ((sigma, rate, steps),)
    rdp = rdp_bound(runs, DELTA)
    bound = prv_bound(runs, DELTA, None, rdp)
    assert bound is not None and bound[0] < rdp < 3 * bound[0] + 1


def test_agrees_with_the_librarys_accountant_where_its_mean_is_right() -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    prvs = [PoissonSubsampledGaussianMechanism(q, sigma) for sigma, q in ((1.0, 0.02), (2.0, 0.1))]
    library = PRVAccountant(prvs, 0.05, DELTA / 1000, [200, 50]).compute_epsilon(DELTA, [200, 50])
    runs = ((1.0, 0.02, 200), (2.0, 0.1, 50))
    bound = prv_bound(runs, DELTA, 0.05, rdp_bound(runs, DELTA))
    assert bound is not None
    assert (bound[1], bound[0]) == pytest.approx(library[1:], abs=1e-3)


def test_the_mean_is_right_where_the_librarys_quadrature_is_not() -> None:
    """PRVAccountant bounds this epsilon by 83.4. Many small steps are one Gaussian mechanism.

    Its mu = q sqrt(n (exp(1 / sigma^2) - 1)) (Bu et al. 2020, arXiv 1911.11607, section 3.2).
    """
    sigma, rate, steps = 4.86, 0.134, 118_000
    mu = rate * math.sqrt(steps * math.expm1(sigma**-2))
    runs = ((sigma, rate, steps),)
    bound = prv_bound(runs, DELTA, None, rdp_bound(runs, DELTA))
    assert bound is not None and bound[1] == pytest.approx(gaussian_epsilon(mu, DELTA), rel=0.01)


@pytest.mark.parametrize(
    ("runs", "delta"),
    [
        (((0.05, 1.0, 100),), DELTA),  # epsilon in the ten thousands
        (tuple((1 + n / 100, 0.01, 1) for n in range(17)), DELTA),  # too many different ones
        (((30.0, 0.01, 1000),), 1e-15),  # delta near the rounding errors
    ],
)
def test_where_prv_cannot_be_computed_rdp_still_bounds(runs, delta: float) -> None:
    rdp = rdp_bound(runs, delta)
    assert prv_bound(runs, delta, None, rdp) is None
    assert 0 < rdp < math.inf


def test_an_error_that_needs_too_much_memory_is_not_tried() -> None:
    runs = ((1.0, 0.01, 10**6),)
    assert prv_bound(runs, DELTA, 1e-6, rdp_bound(runs, DELTA)) is None


#: Every pair of a rate and a noise, by turns with either delta.
EXTREMES = [
    (sigma, rate, (1e-12, 0.9)[(row + column) % 2])
    for row, sigma in enumerate((1e-6, 1e-3, 0.05, 0.3, 200.0, 1e9))
    for column, rate in enumerate((1e-9, 1e-4, 0.3, 1 - 1e-12, 1.0))
]


@pytest.mark.parametrize(("sigma", "rate", "delta"), EXTREMES)
def test_extreme_numbers_give_a_bound_and_no_warning(
    sigma: float, rate: float, delta: float
) -> None:
    runs = ((sigma, rate, 3),)
    rdp = rdp_bound(runs, delta)
    assert rdp >= 0 and math.isfinite(rdp) == (sigma >= 1e-3)
    bound = prv_bound(runs, delta, None, rdp) if math.isfinite(rdp) else None
    if bound:
        assert np.isfinite(bound).all() and 0 <= bound[1] <= bound[0]
