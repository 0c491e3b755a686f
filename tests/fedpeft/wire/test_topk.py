"""The largest numbers of a vector: what arrives, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.wire.topk import decode, encode, encoded_size


@pytest.mark.parametrize(
    ("size", "share", "count"), [(1, 0.5, 1), (2, 1, 2), (98, 0.1, 10), (70_000, 0.001, 70)]
)
def test_the_largest_numbers_arrive_in_their_places(size: int, share: float, count: int) -> None:
    vector = np.random.default_rng(0).standard_normal(size)
    data = encode(vector, share)
    assert len(data) == encoded_size(size, share)
    arrived = decode(data, size, share)
    places = np.sort(sorted(range(size), key=lambda place: -abs(vector[place]))[:count])
    np.testing.assert_array_equal(np.flatnonzero(arrived), places)
    np.testing.assert_allclose(arrived[places], vector[places], rtol=2**-8)


def test_a_code_has_no_byte_too_many() -> None:
    assert encoded_size(98, 0.1) == 10 * 2 + 9  # ten places of 7 bits
    assert encoded_size(1794, 0.01) == 18 * 2 + 25  # 18 places of 11 bits


def test_equal_numbers_are_sent_in_order_of_their_places() -> None:
    np.testing.assert_array_equal(
        np.flatnonzero(decode(encode(np.ones(9), 0.3), 9, 0.3)), [0, 1, 2]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_number_that_is_not_finite_is_refused_when_decoded(value: float) -> None:
    vector = np.arange(50.0)
    vector[3] = value
    with pytest.raises(ValueError, match=r"^1 of 5 numbers are NaN or infinite$"):
        decode(encode(vector, 0.1), 50, 0.1)


def test_hostile_places_and_lengths_are_refused() -> None:
    data = bytearray(encode(np.arange(50.0), 0.1))
    with pytest.raises(ValueError, match=r"^vector has 13 bytes, expected 14 \(5 of 50 numbers\)$"):
        decode(bytes(data[:-1]), 50, 0.1)
    for places in (bytes(4), b"\xff" * 4):  # all in the first place; beyond the end
        with pytest.raises(
            ValueError, match=r"^the places of 5 numbers are not ascending below 50$"
        ):
            decode(bytes(data[:10]) + places, 50, 0.1)
