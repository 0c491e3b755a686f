"""Whole steps of a bounded norm: no vector exceeds the bound, and their mean is the vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpeft.wire import uniform
from fedpeft.wire.steps import bounded, furthest, norm_limit

BITS = (1, 2, 4, 8)


def adversarial(size: int, bits: int) -> dict[str, np.ndarray]:
    """Places, by name, that rounding lengthens most, all of the largest norm or beyond."""
    radius = 1 / uniform.distance(size, bits, 1.0)
    halves = np.full(size, 0.5)
    ones = np.zeros(size)
    ones[: max(1, int(radius**2))] = 1.0
    draw = np.random.default_rng(size)
    normal = draw.standard_normal(size)
    tiny = np.full(size, 1e-9)
    tiny[0] = radius
    return {
        "halves": halves * min(1.0, radius / np.linalg.norm(halves)),
        "even": np.full(size, radius / math.sqrt(size)),
        "just below whole": ones - 1e-12,
        "just above whole": ones + 1e-12,
        "normal": normal * radius / np.linalg.norm(normal),
        "one number": tiny,
        "too long": normal * 50 * radius,
        "negative halves": -halves * min(1.0, radius / np.linalg.norm(halves)),
    }


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [1, 7, 300, 1794])
def test_no_vector_exceeds_the_bounds(size: int, bits: int) -> None:
    limit, own = norm_limit(size, bits), np.random.default_rng(5)
    for name, places in adversarial(size, bits).items():
        for _ in range(30):
            steps = bounded(places, bits, own)
            assert int(steps @ steps) <= limit, name
            ones = int(np.abs(steps).sum())
            assert ones <= min(math.sqrt(size * limit), limit), name
            assert np.abs(steps).max() <= furthest(bits)


class Upwards:
    """Rounds every number up, the longest that any draw can make of it."""

    def random(self, size: int) -> np.ndarray:
        return np.zeros(size)


@pytest.mark.parametrize("bits", BITS)
def test_no_draw_exceeds_the_bounds(bits: int) -> None:
    for places in adversarial(300, bits).values():
        steps = bounded(np.abs(places), bits, Upwards())  # type: ignore[arg-type]
        assert int(steps @ steps) <= norm_limit(300, bits)


def test_rounding_without_the_check_would_exceed_the_bound() -> None:
    """So the check is needed: rounded upwards, places of the allowed norm are longer."""
    places = adversarial(1794, 4)["even"]
    longest = np.ceil(places)
    assert longest @ longest > norm_limit(1794, 4)


@pytest.mark.parametrize("bits", BITS)
def test_the_first_draw_is_within_the_limit_often_enough(bits: int) -> None:
    """For the worst places, all halves on top of the largest norm: probability 0.39 or more."""
    radius, size = 1 / uniform.distance(1794, bits, 1.0), 1794
    share = min(1.0, radius / math.sqrt(size))
    places, own = np.full(size, math.floor(share) + 0.5), np.random.default_rng(3)
    places *= min(1.0, radius / np.linalg.norm(places))
    floor = np.floor(places)
    drawn = floor + (own.random((400, size)) < places - floor)
    within = (drawn**2).sum(axis=1) <= norm_limit(size, bits)
    assert within.mean() > 0.39


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_mean_of_many_roundings_is_the_vector(bits: int) -> None:
    draw, own = np.random.default_rng(2), np.random.default_rng(3)
    places = draw.standard_normal(300)
    places *= 0.9 / uniform.distance(300, bits, 1.0) / np.linalg.norm(places)
    places = places.clip(-furthest(bits), furthest(bits))
    mean = np.mean([bounded(places, bits, own) for _ in range(3000)], axis=0)
    np.testing.assert_allclose(mean, places, atol=5 * 0.5 / math.sqrt(3000))


def test_zero_is_a_step() -> None:
    assert not bounded(np.zeros(50), 1, np.random.default_rng(0)).any()
