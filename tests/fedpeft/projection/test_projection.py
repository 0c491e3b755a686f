"""The stream against golden digests, an independent Philox, and its statistics."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy.stats import kurtosis

from fedpeft.projection import Projection, digest, table

MASK64 = 2**64 - 1


def philox_4x64_10(key: tuple[int, int], block: int) -> list[int]:
    """Philox 4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")."""
    counter, (k0, k1) = [block, 0, 0, 0], key
    for _ in range(10):
        low0, high0 = divmod(0xD2E7470EE14C6C93 * counter[0], 2**64)[::-1]
        low1, high1 = divmod(0xCA5A826395121157 * counter[2], 2**64)[::-1]
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK64, (k1 + 0xBB67AE8584CAA73B) & MASK64
    return counter


@pytest.mark.parametrize(
    ("distribution", "golden"),
    [
        ("normal", "9ccf04ff65ef2321fc8bc0751bcd55c2140f13d3d9e1bd31543e621807cd63ba"),
        ("uniform", "2ba9ac4c5646b4cf8567966fe563c4f41fce241fcd4f70465e8d4a0f0c8ce070"),
    ],
)
def test_golden_digests_of_dense_projections(distribution: str, golden: str) -> None:
    matrix = Projection(0, "slash/ffn_out/3", 384, 1024, distribution).transposed()
    assert matrix.shape == (1024, 384) and matrix.dtype == np.float32
    assert hashlib.sha256(matrix.tobytes()).hexdigest() == golden


def test_stream_is_philox_with_the_documented_key() -> None:
    key = hashlib.sha256(b"fedpeft-projection-v1|5|lora/q/0").digest()[:16]
    words = (int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    samples = []
    for block in (1, 2):  # numpy increments the counter before it draws a block
        for word in philox_4x64_10(words, block):
            samples += [word >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    actual = Projection(5, "lora/q/0", 4, 8, "normal").samples(0, 32)
    assert np.array_equal(actual, table("normal")[samples])


def test_smaller_d_is_a_prefix_of_a_larger_one() -> None:
    small = Projection(1, "slash/ffn_out/0", 10, 7, "normal").transposed()
    large = Projection(1, "slash/ffn_out/0", 10, 50, "normal").transposed()
    assert np.array_equal(small, large[:7])


def test_entry_is_sample_j_rows_plus_i() -> None:
    projection = Projection(1, "a", 5, 3, "uniform")
    stream = projection.samples(0, 15)
    assert projection.transposed()[2, 4] == stream[2 * 5 + 4]


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_entries_have_mean_zero_and_unit_variance(distribution: str) -> None:
    entries = Projection(0, "stats", 1000, 1000, distribution).transposed()
    assert abs(entries.mean()) < 0.005
    assert abs(entries.std() - 1) < 0.002
    expected = 0.0 if distribution == "normal" else -1.2
    assert abs(kurtosis(entries, axis=None) - expected) < 0.02


def test_identity_projection_draws_no_samples() -> None:
    assert np.array_equal(Projection(0, "i", 4, 4, "identity").transposed(), np.eye(4))


@pytest.mark.parametrize(
    "other",
    [
        Projection(1, "a", 8, 4, "normal"),
        Projection(0, "b", 8, 4, "normal"),
        Projection(0, "a", 9, 4, "normal"),
        Projection(0, "a", 8, 5, "normal"),
        Projection(0, "a", 8, 4, "uniform"),
    ],
)
def test_digest_changes_with_every_field(other: Projection) -> None:
    assert digest([Projection(0, "a", 8, 4, "normal")]) != digest([other])
