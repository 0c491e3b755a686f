"""The quantizers of normal numbers: their conditions, their published errors, and their search."""

from __future__ import annotations

import numpy as np
import pytest
from quantization import LEAST_ERROR
from scipy.stats import norm

from fedpeft.wire.quantizer import nearest, quantizer


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_are_the_means_of_their_cells_and_have_the_published_error(bits: int) -> None:
    levels, thresholds = quantizer(bits)
    edges = np.concatenate([[-np.inf], thresholds, [np.inf]])
    share = np.diff(norm.cdf(edges))
    means = -np.diff(norm.pdf(edges)) / share
    np.testing.assert_allclose(levels, means, rtol=0, atol=2e-6)
    assert 1 - share @ levels**2 == pytest.approx(LEAST_ERROR[bits], rel=4e-3 if bits < 6 else 4e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_nearest_level_is_that_of_a_binary_search(bits: int) -> None:
    _, thresholds = quantizer(bits)
    numbers = np.random.default_rng(bits).standard_normal(100_000) * 2
    around = [np.nextafter(thresholds, side) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([numbers, thresholds, *around, [-1e9, 1e9, 0.0, -0.0]])
    np.testing.assert_array_equal(nearest(numbers, bits), np.searchsorted(thresholds, numbers))
