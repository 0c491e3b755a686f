"""Slopes of zeroth-order steps as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.wire.slopes import decode, encode, encoded_size

SLOPES = np.array([[0.5, -2.0, 0.0], [-1e-30, 3e5, -0.25]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_arrive_as_they_are(dtype: str) -> None:
    slopes = SLOPES.astype(dtype)
    data = encode(slopes, "scalars")
    assert len(data) == encoded_size(6, "scalars", dtype) == 6 * slopes.itemsize
    arrived = decode(data, (2, 3), "scalars", dtype)
    assert (arrived.tobytes(), arrived.dtype) == (slopes.tobytes(), slopes.dtype)


def test_signs_take_one_bit() -> None:
    data = encode(SLOPES, "signs")
    assert len(data) == encoded_size(6, "signs", "float64") == 1
    assert encoded_size(9, "signs", "float64") == 2
    expected = [[1, -1, 1], [-1, 1, -1]]
    np.testing.assert_array_equal(decode(data, (2, 3), "signs", "float64"), expected)


def test_a_slope_that_is_nan_has_no_sign() -> None:
    with pytest.raises(ValueError, match="1 of 2 slopes of the loss are NaN"):
        encode(np.array([[np.nan, 1.0]]), "signs")


@pytest.mark.parametrize(
    ("data", "codec", "words"),
    [
        (bytes(20), "scalars", r"update has 20 bytes, expected 24 \(6 scalars\)"),
        (bytes(2), "signs", r"update has 2 bytes, expected 1 \(6 signs\)"),
        (b"", "signs", "update has 0 bytes"),
        (np.full(6, np.nan, "<f4").tobytes(), "scalars", "6 of 6 slopes are NaN"),
        (np.array([1, 2, 3, 4, 5, np.inf], "<f4").tobytes(), "scalars", "1 of 6 slopes"),
    ],
)
def test_bad_bytes_are_refused(data: bytes, codec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data, (2, 3), codec, "float32")
