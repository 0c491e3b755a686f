"""Number formats: what is sent, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeft.wire.formats import decode, encode

PRECISION = {"float16": 2**-11, "bfloat16": 2**-8}  # half of the space between two numbers


@pytest.mark.parametrize(
    ("codec", "bytes_each"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float64", 8)]
)
def test_a_decoded_vector_is_the_encoded_one_in_the_codecs_precision(
    codec: str, bytes_each: int
) -> None:
    vector = np.random.default_rng(0).normal(size=50).astype(np.float32)
    sent = encode(vector, codec)
    assert len(sent) == 50 * bytes_each
    back = decode(sent, codec, 50)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, vector, rtol=PRECISION.get(codec, 0))


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


def test_bfloat16_is_that_of_torch() -> None:
    """All ties, both zeros, subnormal numbers, overflow, infinity and NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[:6] = 0x3F808000, 0x3F818000, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0x00000001
    vector = bits.view(np.float32)
    sent = np.frombuffer(encode(vector, "bfloat16"), "<i2")
    expected = torch.from_numpy(vector).to(torch.bfloat16)
    nan = np.isnan(vector)
    assert (sent[~nan] == expected.view(torch.int16).numpy()[~nan]).all()
    assert torch.from_numpy(sent[nan].copy()).view(torch.bfloat16).isnan().all()
    with pytest.raises(ValueError, match="1 of 2 numbers are NaN or infinite"):
        decode(encode(np.array([1.0, 3.4e38], np.float32), "bfloat16"), "bfloat16", 2)
