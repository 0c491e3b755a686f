"""What mechanisms cost together, and the noise that a cost needs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, calibrate, spent

DELTA = 1e-5


def test_epsilon_is_zero_without_steps_and_infinite_without_noise() -> None:
    assert spent([], DELTA).epsilon == 0.0
    assert spent([Mechanism(1.0, 0.1, 0)], DELTA).epsilon == 0.0
    without = Mechanism(0.0, 0.1, 1)
    assert spent([Mechanism(5.0, 0.1, 10), without], DELTA).epsilon == math.inf


def test_mechanisms_split_into_pieces_have_the_same_epsilon() -> None:
    whole = spent([Mechanism(1.0, 0.05, 30), Mechanism(2.0, 0.1, 10)], DELTA)
    rounds = [Mechanism(2.0, 0.1, 4), *[Mechanism(1.0, 0.05, 10)] * 3, Mechanism(2.0, 0.1, 6)]
    assert spent(rounds, DELTA) == whole
    assert spent(reversed(rounds), DELTA) == whole
    assert whole.accountant == "prv"


def test_an_added_mechanism_costs_more_than_nothing_and_less_than_alone() -> None:
    one, other = Mechanism(1.0, 0.05, 30), Mechanism(2.0, 0.1, 10)
    alone = [spent([mechanism], DELTA).epsilon for mechanism in (one, other)]
    both = spent([one, other], DELTA).epsilon
    assert max(alone) < both < sum(alone)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    sigma=st.floats(0.5, 20),
    rate=st.floats(1e-3, 0.8),
    steps=st.integers(1, 100),
    delta=st.floats(1e-8, 1e-2),
)
def test_epsilon_grows_with_steps_rate_less_noise_and_smaller_delta(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    base = spent([Mechanism(sigma, rate, steps)], delta).epsilon
    worse = [
        spent([Mechanism(sigma, rate, steps * 2)], delta),
        spent([Mechanism(sigma, rate * 1.2, steps)], delta),
        spent([Mechanism(sigma / 1.2, rate, steps)], delta),
        spent([Mechanism(sigma, rate, steps)], delta / 4),
    ]
    assert all(mechanism.epsilon > base for mechanism in worse)


def test_repeated_accounting_is_cached() -> None:
    question = [Mechanism(1.5, 0.01, 5000)]
    assert spent(question, DELTA) is spent(question, DELTA)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (8.0, 1e-5, 0.01, 1000),
        pytest.param(0.1, 1e-5, 0.01, 100, marks=pytest.mark.long),
        (3.0, 1e-3, 1.0, 10),
        (60.0, 1e-5, 0.5, 30),
    ],
)
def test_calibrated_noise_keeps_the_epsilon_and_is_hardly_more_than_needed(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    sigma = calibrate(epsilon, delta, rate, steps)
    assert spent([Mechanism(sigma, rate, steps)], delta).epsilon <= epsilon
    assert spent([Mechanism(0.99 * sigma, rate, steps)], delta).epsilon > epsilon
    assert sigma == float(f"{sigma:.4g}")


def test_a_larger_accounting_error_needs_more_noise() -> None:
    assert calibrate(3.0, DELTA, 0.05, 100, 0.5) > calibrate(3.0, DELTA, 0.05, 100)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Mechanism(-1.0, 0.1, 1), "noise multiplier = -1"),
        (lambda: Mechanism(math.nan, 0.1, 1), "noise multiplier = nan"),
        (lambda: Mechanism(1.0, 0.0, 1), "sampling rate = 0"),
        (lambda: Mechanism(1.0, 1.1, 1), "sampling rate = 1.1"),
        (lambda: Mechanism(1.0, 0.1, -1), "steps = -1"),
        (lambda: spent([], 0.0), "delta = 0"),
        (lambda: spent([], 1.0), "delta = 1"),
        (lambda: spent([], DELTA, 0.0), "epsilon_error = 0"),
        (lambda: calibrate(0.0, DELTA, 0.1, 1), "epsilon = 0"),
        (lambda: calibrate(math.inf, DELTA, 0.1, 1), "epsilon = inf"),
        (lambda: calibrate(1.0, 2.0, 0.1, 1), "delta = 2"),
        (lambda: calibrate(1.0, DELTA, 0.1, 0), "steps = 0"),
        (lambda: calibrate(1.0, DELTA, 2.0, 1), "sampling rate = 2"),
        (lambda: calibrate(1e-4, DELTA, 0.1, 1), "choose a larger epsilon"),
    ],
)
def test_values_out_of_range_are_named(wrong, words: str) -> None:
    with pytest.raises(UserError, match=words):
        wrong()
