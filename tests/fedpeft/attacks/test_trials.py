"""Bounds from independent trials: against exact intervals, closed forms, and known mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from fedpeft.attacks.trials import (
    Counts,
    counts_of,
    gaussian_bound,
    lower_bound,
    middle_of,
    threshold_of,
)
from fedpeft.privacy.accounting import Mechanism, spent


@pytest.mark.parametrize("positive", [0, 1, 30, 99, 100])
def test_rates_are_those_of_clopper_and_pearson(positive: int) -> None:
    low, high = Counts(positive, 100, positive, 100).rates(0.9)
    exact = binomtest(positive, 100).proportion_ci(0.9, "exact")  # 5 % on each side
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_the_bound_is_the_closed_form_if_all_trials_are_right() -> None:
    """Refuted at 97.5 % each: P[positive | in] < 0.025^(1/n), P[positive | out] > 1 - that."""
    share = 0.025 ** (1 / 500)
    expected = math.log((share - 1e-3) / (1 - share))
    assert lower_bound(Counts(500, 500, 0, 500), 1e-3, 0.95) == pytest.approx(expected)


@pytest.mark.parametrize("bound", [lower_bound, gaussian_bound])
def test_chance_and_no_trials_prove_nothing(bound: object) -> None:
    for counts in (Counts(50, 100, 50, 100), Counts(0, 100, 0, 100), Counts(0, 0, 0, 0)):
        assert callable(bound) and bound(counts, 1e-3, 0.95) == 0


def test_positive_trials_count_from_the_threshold_on() -> None:
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    coins = np.array([True, False, False, True])
    assert counts_of(scores, coins, 2.0) == Counts(true=1, included=2, false=1, excluded=2)


def gaussian_trials(mu: float, count: int, draw: np.random.Generator) -> tuple[np.ndarray, ...]:
    coins = draw.random(count) < 0.5
    return draw.normal(size=count) + mu * coins, coins


def test_a_gaussian_mechanism_is_refuted_in_at_most_one_of_twenty_audits() -> None:
    """Both bounds stay below its epsilon, and are worth something."""
    delta, draw, audits = 1e-3, np.random.default_rng(3), 400
    epsilon = spent([Mechanism(1.0, 1.0, 1)], delta).epsilon
    plain, tight = np.empty(audits), np.empty(audits, bool)
    for audit in range(audits):
        seen, fresh = (gaussian_trials(1.0, 1000, draw) for _ in range(2))
        threshold = threshold_of(*seen, lambda counts: lower_bound(counts, delta, 0.95))
        plain[audit] = lower_bound(counts_of(*fresh, threshold), delta, 0.95)
        low, high = counts_of(*fresh, middle_of(*seen)).rates(0.95)
        tight[audit] = norm.ppf(low) - norm.ppf(high) > 1.0
    assert (plain > epsilon).mean() <= 0.05 and np.median(plain) > 0.7
    assert binomtest(int(tight.sum()), audits, 0.05, alternative="greater").pvalue > 1e-3


def test_the_gaussian_bound_comes_near_epsilon_with_many_trials() -> None:
    draw = np.random.default_rng(0)
    seen, fresh = (gaussian_trials(1.15, 400_000, draw) for _ in range(2))
    counts = counts_of(*fresh, middle_of(*seen))
    epsilon = spent([Mechanism(1 / 1.15, 1.0, 1)], 1e-3).epsilon
    assert 0.96 * epsilon < gaussian_bound(counts, 1e-3, 0.95) < epsilon
