"""Moments against plain matrix products, and their sum over any partition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeft.heads.moments import Moments

WIDTH, CLASSES = 5, 4
KINDS = ["classes", "score"]


def rows(kind: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, targets and weights; class 3 has no rows."""
    draw = np.random.default_rng(seed)
    features = draw.standard_normal((count, WIDTH)) + 3
    labels = draw.integers(0, CLASSES - 1, count)
    targets = np.eye(CLASSES)[labels]
    if kind == "score":
        targets = np.stack([np.ones(count), features @ draw.standard_normal(WIDTH)], axis=1)
    return features, targets, draw.uniform(0.2, 1, count)


def assert_equal(one: Moments, other: Moments) -> None:
    assert one.rows == other.rows
    for name in ("gram", "totals", "energy", "scatter"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_weighted_least_squares(kind: str) -> None:
    features, targets, weights = rows(kind, 50)
    moments, root = Moments.of(features, targets, weights), np.sqrt(weights)[:, None]
    np.testing.assert_allclose(moments.totals, sum_of(targets, features, weights))
    np.testing.assert_allclose(moments.gram, sum_of(targets, targets, weights))
    fit, *_ = np.linalg.lstsq(targets * root, features * root)
    residual = (features - targets @ fit) * root
    np.testing.assert_allclose(moments.scatter, residual.T @ residual)
    assert moments.energy == pytest.approx(np.square(residual).sum())


def sum_of(left: np.ndarray, right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return sum(w * np.outer(a, b) for a, b, w in zip(left, right, weights, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@given(cuts=st.lists(st.integers(1, 39), max_size=6, unique=True), seed=st.integers(0, 99))
def test_the_moments_of_a_partition_add_up(kind: str, cuts: list[int], seed: int) -> None:
    features, targets, weights = rows(kind, 40, seed)
    parts = np.split(np.random.default_rng(seed).permutation(40), sorted(cuts))
    merged = Moments.merged(
        [Moments.of(features[part], targets[part], weights[part]) for part in parts]
    )
    assert_equal(merged, Moments.of(features, targets, weights))


def test_one_part_without_second_moments_leaves_the_sum_without_them() -> None:
    features, targets, weights = rows("classes", 40)
    first, second = (
        Moments.of(features[part], targets[part], weights[part])
        for part in (slice(0, 25), slice(25, None))
    )
    bare = Moments(second.rows, second.gram, second.totals, second.energy)
    merged = Moments.merged([first, bare])
    assert merged.scatter is None
    assert merged.energy == pytest.approx(Moments.of(features, targets, weights).energy)


def test_errors_of_codecs_add_up() -> None:
    parts = [Moments(1, np.eye(2), np.zeros((2, 3)), 0.0, np.zeros((3, 3)), n) for n in (0.5, 2.0)]
    assert Moments.merged(parts).noise == 2.5
