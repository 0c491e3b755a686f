"""Tails against SciPy's distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from fedpeft.secure import tails


@pytest.mark.parametrize(
    ("clients", "marked", "drawn"), [(999, 50, 100), (999, 800, 118), (10, 10, 4), (10, 0, 4)]
)
def test_hypergeometric_probabilities(clients: int, marked: int, drawn: int) -> None:
    expected = hypergeom(clients, marked, drawn).pmf(np.arange(drawn + 1))
    np.testing.assert_allclose(
        tails.hypergeometric(clients, marked, drawn), expected, rtol=1e-7, atol=1e-300
    )


@pytest.mark.parametrize(("trials", "probability"), [(199, 0.12), (5, 1.0), (5, 0.0), (0, 0.3)])
def test_binomial_probabilities(trials: int, probability: float) -> None:
    expected = binom(trials, probability).pmf(np.arange(trials + 1))
    np.testing.assert_allclose(tails.binomial(trials, probability), expected, rtol=1e-9)


def test_thinned_counts_are_binomial() -> None:
    """Of a binomial number each stays with a probability: binomial again."""
    thinned = tails.binomial(30, 0.5) @ tails.thinning(255, 0.9)[:31, :31]
    np.testing.assert_allclose(thinned, tails.binomial(30, 0.45), rtol=1e-9)


@pytest.mark.parametrize("failure", [0.3, 0.01, 1e-8])
def test_quantiles(failure: float) -> None:
    law = hypergeom(999, 50, 100)
    probabilities = tails.hypergeometric(999, 50, 100)
    most, least = tails.exceeded(probabilities, failure), tails.reached(probabilities, failure)
    assert law.sf(most) <= failure < law.sf(most - 1)
    assert law.cdf(least - 1) <= failure < law.cdf(least)


def test_sums_exceed_chernoffs_bound_as_rarely_as_stated() -> None:
    draw = np.random.default_rng(0)
    sums = draw.hypergeometric(50, 949, 118, (20_000, 50)).sum(axis=1)
    mean = 50 * 118 * 50 / 999
    for failure in (0.1, 0.01):
        assert (sums > tails.sum_exceeded(mean, failure)).mean() <= failure
    assert tails.sum_exceeded(mean, 1e-5) < 1.4 * mean
