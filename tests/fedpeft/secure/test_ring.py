"""Sums modulo 2^w, and their packing."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedpeft.secure import ring

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("bits", [1, 4, 7, 8, 11, 14, 48, 56])
def test_packing_keeps_the_lowest_bits(bits: int) -> None:
    values = DRAW.integers(0, 1 << 60, 101).astype(np.uint64)
    data = ring.pack(values, bits)
    assert len(data) == ring.packed_size(101, bits) == -(-101 * bits // 8)
    np.testing.assert_array_equal(ring.unpack(data, 101, bits), values % (1 << bits))
    whole = int.from_bytes(data, "little")  # the literal layout
    assert [whole >> bits * i & (1 << bits) - 1 for i in range(101)] == [
        int(value) % (1 << bits) for value in values
    ]


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="have 3 bytes, expected 2"):
        ring.unpack(bytes(3), 2, 8)


@pytest.mark.parametrize(("clients", "bits"), [(10, 8), (100, 11), (255, 12), (1, 4), (17, 8)])
def test_the_width_holds_the_largest_sum_and_no_more(clients: int, bits: int) -> None:
    """Ring overflow: all clients send the largest level."""
    assert ring.width(clients, 16) == bits
    largest = np.full(1, clients * 15, np.uint64)
    assert ring.reduced(largest, bits) == largest
    assert ring.reduced(largest, bits - 1) != largest


def test_masks_cancel_and_differ_by_seed() -> None:
    seeds = [DRAW.bytes(32) for _ in range(3)]
    [nothing] = ring.total([(50, 11)], plus=seeds, minus=seeds)
    assert not nothing.any()
    streams = [ring.stream(seed, 50, 11) for seed in seeds]
    assert len({each.tobytes() for each in streams}) == 3
    expected = (streams[0] + streams[1] - streams[2]) % (1 << 11)
    [found] = ring.total([(50, 11)], plus=seeds[:2], minus=seeds[2:])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("bits", "size"), [(8, 1), (11, 2), (20, 4), (48, 8)])
def test_a_mask_is_the_stream_of_chacha20_in_the_smallest_numbers(bits: int, size: int) -> None:
    seed = DRAW.bytes(32)
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(3 * size))
    words = [int.from_bytes(stream[i * size : (i + 1) * size], "little") for i in range(3)]
    assert ring.stream(seed, 3, bits).tolist() == [word % (1 << bits) for word in words]


def test_parts_of_a_mask_share_no_bytes_of_the_stream() -> None:
    seed = DRAW.bytes(32)
    facts, levels = ring.total([(2, 48), (5, 11)], plus=[seed])
    stream = ring.octets(seed, 16 + 10)
    assert facts.tolist() == [
        int.from_bytes(stream[i : i + 8], "little") % (1 << 48) for i in (0, 8)
    ]
    assert levels.tolist() == [
        int.from_bytes(stream[i : i + 2], "little") % (1 << 11) for i in range(16, 26, 2)
    ]


@pytest.mark.parametrize("bits", [1, 2, 11, 48])
def test_signed_numbers_come_back_from_their_residues(bits: int) -> None:
    half = 1 << (bits - 1)
    values = np.array([-half, -1, 0, half - 1] if bits > 1 else [-1, 0])
    residues = ring.reduced(values.astype(np.uint64), bits)
    np.testing.assert_array_equal(ring.signed(residues, bits), values)
    beyond = ring.signed(np.array([half], np.uint64), bits)
    assert beyond == [-half]  # comes back at the other end
