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


def shared(secret: bytes, shares: int, threshold: int) -> list[bytes]:
    chosen = [DRAW.bytes(len(secret)) for _ in range(threshold - 1)]
    return chosen + split(secret, chosen, shares)


@pytest.mark.parametrize(("shares", "threshold"), [(1, 1), (5, 3), (10, 10), (255, 60)])
def test_any_threshold_of_shares_gives_the_secret(shares: int, threshold: int) -> None:
    secret = DRAW.bytes(16)
    made = shared(secret, shares, threshold)
    assert len(made) == shares
    rows = [DRAW.choice(shares, threshold, replace=False) + 1 for _ in range(5)]
    found = combine([row.tolist() for row in rows], [[made[x - 1] for x in row] for row in rows])
    assert found == [secret] * 5


def test_combination_is_that_of_the_literal_field() -> None:
    for points in combinations([1, 2, 77, 200, 255], 3):
        shares = [DRAW.bytes(4) for _ in points]
        [found] = combine([points], [shares])
        for place in range(4):
            assert found[place] == literal([*points], [share[place] for share in shares])


def test_shares_are_values_of_the_polynomial_through_the_secret_and_the_chosen_ones() -> None:
    """The literal field finds a chosen share from the secret and other shares."""
    secret, chosen = b"\x2a", [b"\x07", b"\x91"]
    made = split(secret, chosen, 5)
    assert literal([1, 2, 3], [7, 0x91, made[0][0]]) == 0x2A
    assert literal([2, 4, 5], [0x91, made[1][0], made[2][0]]) == 0x2A


def test_fewer_shares_say_nothing() -> None:
    """Every secret leads to the same share, for some polynomial: all bytes occur equally often."""
    for share in (0, 1):
        counts = np.zeros(256, int)
        for first in range(256):
            chosen = [bytes([first])]
            counts[[*chosen, *split(b"\x2a", chosen, 2)][share][0]] += 1
        assert set(counts.tolist()) == {1}


def test_many_secrets_are_combined_at_once_each_at_its_points() -> None:
    secrets = [DRAW.bytes(16) for _ in range(50)]
    made = [shared(secret, 20, 12) for secret in secrets]
    points = [(DRAW.permutation(20)[:12] + 1).tolist() for _ in secrets]
    rows = [[row[x - 1] for x in place] for row, place in zip(made, points, strict=True)]
    assert combine(points, rows) == secrets


@pytest.mark.parametrize("points", [[1, 1, 2], [0, 1, 2], [1, 2, 256]])
def test_repeated_and_impossible_points_are_refused(points: list[int]) -> None:
    with pytest.raises(ValueError, match="different ones from 1 to 255"):
        combine([[1, 2, 3], points], [[b"a"] * 3] * 2)


def test_numbers_that_do_not_fit_are_refused() -> None:
    for shares, chosen in ((3, 3), (256, 1)):
        with pytest.raises(ValueError, match="expected 1 to 255"):
            split(b"a", [b"b"] * chosen, shares)
