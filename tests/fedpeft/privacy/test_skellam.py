"""The Skellam mechanism: its noise, its accounting against exact computations, its ring."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ive, logsumexp

from fedpeft.privacy.accounting import Mechanism, calibrate, spent
from fedpeft.privacy.noise import KeptNoise, SecureNoise, SeededNoise
from fedpeft.privacy.skellam import WRAPS, ring_bits, skellam, variance

ORDERS = (2, 3, 5, 8, 16, 32, 64, 128)


def masses(mu: float, reach: int) -> np.ndarray:
    """Probabilities of -reach ... reach, as the definition has them."""
    return np.asarray(stats.skellam.pmf(np.arange(-reach, reach + 1), mu / 2, mu / 2))


def log_masses(mu: float, numbers: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, also of those below the smallest float.

    Bessel functions by the backward recurrence of their ratios, I_(k - 1) / I_k = 2 k / mu +
    I_(k + 1) / I_k, which forgets its start.
    """
    most = int(np.abs(numbers).max()) + 50
    ratios, above = np.zeros(most), 0.0
    for k in range(most, 0, -1):
        above = 1 / (2 * k / mu + above)
        ratios[k - 1] = above
    logs = np.log(ive(0, mu)) + np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    return np.asarray(logs[np.abs(numbers)])


@pytest.mark.parametrize("mu", [0.3, 7.0, 900.0])
def test_noise_has_the_distribution_of_two_poisson_variables(mu: float) -> None:
    drawn = skellam(mu, 200_000, SeededNoise(np.random.default_rng(1)))
    assert drawn.mean() == pytest.approx(0, abs=4 * math.sqrt(mu / 200_000))
    assert drawn.var() == pytest.approx(mu, rel=0.03)
    reach = math.ceil(4 * math.sqrt(mu) + 2)
    inside = drawn[np.abs(drawn) <= reach]
    counts = np.bincount(inside + reach, minlength=2 * reach + 1)
    expected = masses(mu, reach) * 200_000
    common = expected >= 5
    squares = (counts - expected)[common] ** 2 / expected[common]
    assert stats.chi2.sf(squares.sum(), common.sum() - 1) > 1e-4
    assert counts[~common].sum() == pytest.approx(200_000 - expected[common].sum(), abs=30)


def test_parts_of_clients_add_up_to_the_noise_of_their_total_variance() -> None:
    parts = [skellam(2.5, 100_000, SeededNoise(np.random.default_rng(c))) for c in range(8)]
    total = np.sum(parts, axis=0)
    expected = masses(20.0, 20) * 100_000
    counts = np.bincount(total[np.abs(total) <= 20] + 20, minlength=41)
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), 40) > 1e-4


def test_secure_sources_give_the_same_distribution_and_kept_noise_repeats() -> None:
    for source in (SecureNoise(), KeptNoise(bytes(32))):
        drawn = skellam(50.0, 100_000, source)
        assert stats.kstest(drawn + np.random.default_rng(0).random(100_000) - 0.5, _cdf).pvalue > (
            1e-6
        )
    first, again, other = (
        skellam(50.0, 30, KeptNoise(seed)) for seed in (bytes(32), bytes(32), b"1" * 32)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (skellam(50.0, 30, SecureNoise()) != first).any()


def _cdf(x: np.ndarray) -> np.ndarray:
    """Distribution function of Sk(50) plus a uniform number from -1/2 to 1/2."""
    below, rest = np.floor(x + 0.5), x + 0.5 - np.floor(x + 0.5)
    before = stats.skellam.cdf(below - 1, 25, 25)
    return np.asarray(before + rest * stats.skellam.pmf(below, 25, 25))


def renyi(mu: float, shift: int, order: int) -> float:
    """Exact Renyi divergence of Sk(mu) + shift from Sk(mu)."""
    reach = math.ceil(12 * math.sqrt(mu) + 2 * order * shift + 40)
    numbers = np.arange(-reach, reach + 1)
    terms = order * log_masses(mu, numbers - shift) + (1 - order) * log_masses(mu, numbers)
    return float(logsumexp(terms)) / (order - 1)


@pytest.mark.parametrize("squared", [1, 16, 400])
@pytest.mark.parametrize("sigma", [0.6, 3.0])
def test_divergences_are_below_those_of_the_gaussian_and_close_to_them(
    sigma: float, squared: int
) -> None:
    """For vectors of any dimension: the numbers' divergences add up, as do the squares of shifts.

    So it suffices that each number's divergence is at most its square's share of the bound.
    """
    mu = variance(sigma, squared)
    assert mu >= sigma**2 * squared
    for order in ORDERS:
        gaussian = order / (2 * sigma**2)
        shares = [
            renyi(mu, shift, order) / (gaussian * shift**2 / squared)
            for shift in (1, 2, 3, 4, 8, 20)
            if shift**2 <= squared
        ]
        assert max(shares) <= 1 + 1e-9, (order, shares)
        if squared == 400 and order <= 32:
            assert max(shares) > 0.97, (order, shares)  # of single steps


def privacy_losses(mu: float, shifts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Privacy losses of vectors that differ by ``shifts``, and their probabilities."""
    losses, weights = np.zeros(1), np.ones(1)
    reach = math.ceil(9 * math.sqrt(mu) + 9)
    for shift in shifts:
        numbers = np.arange(-reach, reach + 1) + shift
        loss = log_masses(mu, numbers - shift) - log_masses(mu, numbers)
        losses = np.add.outer(losses, loss).ravel()
        weights = np.multiply.outer(weights, np.exp(log_masses(mu, numbers - shift))).ravel()
    return losses, weights


def epsilon_of(mu: float, shifts: list[int], delta: float) -> float:
    """Exact epsilon, where delta = E max(0, 1 - exp(epsilon - loss))."""
    losses, weights = privacy_losses(mu, shifts)
    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        enough = weights @ np.maximum(0, -np.expm1(middle - losses)) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return high


@pytest.mark.parametrize("shifts", [[1], [5], [20], [1, 1], [-6, 8], [1, 1, 1], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_the_accounted_epsilon_is_above_the_exact_one_and_near_it(
    sigma: float, shifts: list[int]
) -> None:
    """Exact privacy loss distributions of one to three numbers."""
    mu, delta = variance(sigma, sum(shift**2 for shift in shifts)), 1e-5
    exact = epsilon_of(mu, shifts, delta)
    bound = spent([Mechanism(sigma, 1.0, 1, "skellam")], delta)
    assert bound.accountant == "rdp" and bound.epsilon_error == 0
    assert exact <= bound.epsilon
    if sum(shift**2 for shift in shifts) >= 100:
        assert bound.epsilon < 1.14 * exact  # what a conversion of Renyi divergences costs
        # The Gaussian mechanism's own epsilon, by another accountant: 6 % is what little variance
        # costs, 0.5 % is PRV's error.
        gaussian = spent([Mechanism(sigma, 1.0, 1)], delta).epsilon
        assert 0.94 * gaussian < exact < 1.01 * gaussian


def test_large_variance_is_that_of_the_gaussian_mechanism() -> None:
    assert variance(1.0, 1e6) == pytest.approx(1e6 + 2.5, abs=0.01)
    assert variance(0.0, 1e6) == 0
    exact = epsilon_of(variance(1.0, 90_000), [300], 1e-5)
    assert exact == pytest.approx(spent([Mechanism(1.0, 1.0, 1)], 1e-5).epsilon, rel=0.01)


def test_calibrated_noise_stays_within_epsilon_and_no_more() -> None:
    sigma = calibrate(4.0, 1e-4, 1.0, 5, noise="skellam")
    run = Mechanism(sigma, 1.0, 5, "skellam")
    assert 3.98 < spent([run], 1e-4).epsilon <= 4
    assert 1 < sigma / calibrate(4.0, 1e-4, 1.0, 5) < 1.1  # PRV allows less Gaussian noise


def test_gaussian_charges_beside_skellam_noise_count_by_their_divergences() -> None:
    both = [Mechanism(2.0, 1.0, 3), Mechanism(2.0, 1.0, 4, "skellam")]
    assert spent(both, 1e-5) == spent([Mechanism(2.0, 1.0, 7, "skellam")], 1e-5)


def test_skellam_noise_has_no_sample() -> None:
    with pytest.raises(Exception, match=r"sampling rate = 0.5: expected a number of 1"):
        Mechanism(1.0, 0.5, 1, "skellam")


@pytest.mark.parametrize(("mu", "furthest"), [(0.2, 3), (40.0, 80), (2.5e5, 1280), (1e12, 10)])
def test_the_ring_holds_sum_and_noise_but_for_the_stated_probability(
    mu: float, furthest: int
) -> None:
    bits = ring_bits(mu, furthest)
    room = 2 ** (bits - 1) - 1 - furthest
    if mu < 1e6:
        assert 2 * stats.skellam.sf(room, mu / 2, mu / 2) <= WRAPS
    assert room < 2.3 * (8 * math.sqrt(mu) + furthest + 30)  # no wider than needed
    assert ring_bits(0.0, furthest) == math.ceil(math.log2(furthest + 1)) + 1
