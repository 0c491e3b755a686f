"""Sizes as text."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.robust import tolerated
from fedpeft.experiment.sizes import share_of, size_in_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("140 B", 140),
        ("1 KB", 1000),
        ("1KB", 1000),
        ("1.5 kb", 1500),
        (" 2 MB ", 2_000_000),
        ("1.001 KB", 1001),
    ],
)
def test_units_are_decimal(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "1", "KB", "-1 KB", "1 KiB", "1 GB", "1e3 B", "١ KB"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as '500 B'"):
        size_in_bytes(text)


@given(st.integers(0, 10_000), st.integers(1, 100_000))
def test_shares_are_exact_in_decimals(parts: int, count: int) -> None:
    exact = Fraction(parts, 10_000) * count
    share = float(f"{parts / 10_000:.4f}")
    assert floor(share_of(share, count)) == floor(exact)
    assert ceil(share_of(share, count)) == ceil(exact)


def test_a_share_of_one_third_is_a_third() -> None:
    assert (ceil(share_of(5 / 3, 3)), floor(share_of(1 / 3, 3))) == (5, 1)


@pytest.mark.parametrize(("trim", "clients", "most"), [(0.29, 100, 29), (0.1, 19, 1), (0.2, 4, 0)])
def test_trimmed_clients_are_counted_in_decimals(trim: float, clients: int, most: int) -> None:
    section = FederationSection(strategy="fedtrimmedavg", trim=trim, clients=clients)
    assert tolerated(section, clients) == most
