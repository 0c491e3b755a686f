"""Shamir's sharing against Lagrange interpolation with a literal field multiplication."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedpeft.secure.sharing import combine, split

DRAW = np.random.default_rng(0)


def times(one: int, other: int) -> int:
    """The product of two polynomials over GF(2), modulo that of AES."""
    product = 0
    for bit in range(8):
        if other >> bit & 1:
            product ^= one << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def inverse(value: int) -> int:
    return next(other for other in range(1, 256) if times(value, other) == 1)


def literal(points: list[int], values: list[int]) -> int:
    """The value at 0 of the polynomial through the points."""
    total = 0
    for j, value in zip(points, values, strict=True):
        weight = value
        for m in points:
            if m != j:
                weight = times(weight, times(m, inverse(m ^ j)))
        total ^= weight
    return total


@pytest.mark.parametrize(("shares", "threshold"), [(1, 1), (5, 3), (10, 10), (255, 60)])
def test_any_threshold_of_shares_gives_the_secret(shares: int, threshold: int) -> None:
    secret = DRAW.bytes(16)
    made = split(secret, shares, threshold, DRAW.bytes(16 * (threshold - 1)))
    for _ in range(5):
        points = DRAW.choice(shares, threshold, replace=False) + 1
        rows = [[made[point - 1] for point in points]]
        assert combine(points.tolist(), rows) == [secret]


def test_combination_is_that_of_the_literal_field() -> None:
    for points in combinations([1, 2, 77, 200, 255], 3):
        shares = [DRAW.bytes(4) for _ in points]
        [found] = combine(points, [shares])
        for place in range(4):
            assert found[place] == literal([*points], [share[place] for share in shares])


def test_fewer_shares_say_nothing() -> None:
    """Every secret leads to the same share, for some polynomial: all bytes occur equally often."""
    counts = np.zeros(256, int)
    for first in range(256):
        counts[split(b"\x2a", 2, 2, bytes([first]))[0][0]] += 1
    assert set(counts.tolist()) == {1}


def test_many_secrets_are_combined_at_once() -> None:
    secrets = [DRAW.bytes(16) for _ in range(50)]
    made = [split(secret, 20, 12, DRAW.bytes(16 * 11)) for secret in secrets]
    points = [3, 5, *range(11, 21)]
    assert combine(points, [[row[point - 1] for point in points] for row in made]) == secrets


@pytest.mark.parametrize("points", [[1, 1, 2], [0, 1, 2], [1, 2, 256]])
def test_repeated_and_impossible_points_are_refused(points: list[int]) -> None:
    with pytest.raises(ValueError, match="different ones from 1 to 255"):
        combine(points, [[b"a"] * 3])


def test_numbers_that_do_not_fit_are_refused() -> None:
    for shares, threshold in ((3, 4), (256, 2), (3, 0)):
        with pytest.raises(ValueError, match="expected 1 to 255"):
            split(b"a", shares, threshold, bytes(max(0, threshold - 1)))
