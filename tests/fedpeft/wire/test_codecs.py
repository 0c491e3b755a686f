"""Codecs: what is sent, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.wire.codecs import decode, encode


@pytest.mark.parametrize(("codec", "bytes_each"), [("float32", 4), ("float16", 2), ("float64", 8)])
def test_a_decoded_vector_is_the_encoded_one_in_the_codecs_precision(
    codec: str, bytes_each: int
) -> None:
    vector = np.random.default_rng(0).normal(size=50).astype(np.float32)
    sent = encode(vector, codec)
    assert len(sent) == 50 * bytes_each
    back = decode(sent, codec, 50)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, vector, rtol=1e-3 if codec == "float16" else 0)


def test_numbers_are_sent_little_endian() -> None:
    assert encode(np.array([1.0], ">f4"), "float32") == b"\x00\x00\x80\x3f"
    assert decode(b"\x00\x00\x80\x3f", "float32", 1).tolist() == [1.0]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.float32), r"12 bytes, expected 16 \(4 x float32\)"),
        (np.zeros(4, np.float64), "32 bytes, expected 16"),
        (np.array([0, np.nan, np.inf, 1], np.float32), "2 of 4 numbers are NaN or infinite"),
    ],
)
def test_decoding_refuses_wrong_lengths_and_numbers_that_are_not_finite(
    array: np.ndarray, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        decode(array.tobytes(), "float32", 4)
