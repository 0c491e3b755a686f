"""The one-run audit's statistics: against plain sums, laws, and mechanisms of known privacy."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import binomtest

from fedpeft.attacks.one_run import lower_bound, p_value, right_guesses


def slow_p_value(m: int, r: int, v: int, success: Fraction, delta: Fraction) -> Fraction:
    """Theorem 5.2 with the worst F that is i with probability 2 m delta / i, in fractions."""
    mass = [math.comb(r, w) * success**w * (1 - success) ** (r - w) for w in range(r + 1)]
    tail = sum(mass[v:], Fraction(0))
    lifts = [sum(mass[v - i : v], Fraction(0)) * 2 * m * delta / i for i in range(1, v + 1)]
    return min(Fraction(1), tail + max(lifts, default=Fraction(0)))


@pytest.mark.parametrize("right", [0, 1, 7, 11, 14])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.5])
def test_p_value_is_the_sum_of_the_theorem(right: int, delta: float) -> None:
    expected = slow_p_value(20, 14, right, Fraction(3, 4), Fraction(delta))
    bound = p_value(20, 14, right, math.log(3), delta)
    assert bound == pytest.approx(float(expected), rel=1e-9)


def test_p_value_falls_with_right_guesses_and_rises_with_epsilon_and_delta() -> None:
    by_right = [p_value(100, 50, right, 0.5, 1e-4) for right in range(51)]
    by_epsilon = [p_value(100, 50, 40, epsilon, 1e-4) for epsilon in np.linspace(0, 4, 50)]
    by_delta = [p_value(100, 50, 40, 0.5, delta) for delta in (0, 1e-5, 1e-3, 1e-2)]
    assert (np.diff(by_right) <= 0).all()
    assert (np.diff(by_epsilon) > 0).all()
    assert (np.diff(by_delta) > 0).all()


def test_a_mechanism_that_tells_all_with_probability_delta_is_not_refuted_too_often() -> None:
    """It is (0, delta)-private, and the worst for this F: all r guesses are right then."""
    for guesses, delta in ((10, 1e-3), (60, 1e-2)):
        chance = delta + (1 - delta) * 0.5**guesses
        assert p_value(60, guesses, guesses, 0.0, delta) >= chance
    assert p_value(60, 60, 60, 0.0, 0.0) < 1e-2  # without delta it would be


@pytest.mark.parametrize("guesses", [2, 20, 200])
def test_when_all_guesses_are_right_the_bound_is_the_closed_form(guesses: int) -> None:
    """Refuted are the success rates s with s^r <= 0.05."""
    success = 0.05 ** (1 / guesses)
    expected = max(0.0, math.log(success / (1 - success)))
    assert lower_bound(400, guesses, guesses, 0.0, 0.95) == pytest.approx(expected, abs=1e-9)


def test_the_bound_is_where_the_p_value_is_one_minus_the_confidence() -> None:
    bound = lower_bound(200, 100, 80, 1e-5, 0.9)
    assert p_value(200, 100, 80, bound, 1e-5) == pytest.approx(0.1, abs=1e-9)
    assert lower_bound(200, 100, 80, 1e-5, 0.99) < bound
    assert lower_bound(200, 100, 52, 1e-5, 0.9) == 0  # chance


def randomised_response(epsilon: float, m: int, r: int, draw: np.random.Generator) -> int:
    """Return how many guesses are right where each coin is told truly with e^eps / (1 + e^eps)."""
    included = draw.random(m) < 0.5
    lies = draw.random(m) > 1 / (1 + math.exp(-epsilon))
    return right_guesses((included ^ lies).astype(float), included, r)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_exact_randomised_response_is_refuted_in_at_most_one_of_twenty_runs(
    epsilon: float,
) -> None:
    """It is exactly epsilon-private, so this is the tightest that can be asked for."""
    bound = lru_cache(lambda right: lower_bound(100, 50, right, 0.0, 0.95))
    draw, runs = np.random.default_rng(4), 3000
    refuted = sum(bound(randomised_response(epsilon, 100, 50, draw)) > epsilon for _ in range(runs))
    assert binomtest(refuted, runs, 0.05, alternative="greater").pvalue > 1e-3
    assert refuted > 0.005 * runs  # a bound of zero would pass, and be worth nothing


def test_the_bound_comes_near_epsilon_with_many_canaries() -> None:
    draw = np.random.default_rng(0)
    right = randomised_response(1.5, 20_000, 10_000, draw)
    assert 1.4 < lower_bound(20_000, 10_000, right, 0.0, 0.95) < 1.5


def test_the_highest_scores_are_guessed_in_and_the_lowest_out() -> None:
    scores = np.array([0.9, -3.0, 0.1, 5.0, -1.0, 0.2])
    included = np.array([True, True, False, True, False, False])
    # Two guesses: 5.0 in (right), -3.0 out (wrong). Four: also 0.9 in and -1.0 out, both right.
    assert right_guesses(scores, included, 2) == 1
    assert right_guesses(scores, included, 4) == 3
