"""Masks of an update: two streams for each seed, for the levels and for a few facts."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from fedpeft.secure import keys, ring

FACTS = 2  # the norm of the update and the training loss, see ``fedpeft.sums``
FACT_BITS = 48


def among(context: str, number: int, peers: bytes) -> str:
    """Return a name of a round and its clients, part of all keys and masks of the round.

    Clients to whom the server names other clients of the round cannot open each other's shares.

    Args:
        context: of the run.
        number: of the round.
        peers: the clients, see ``fedpeft.secure.keys.Peer``.
    """
    return f"{context}|{number}|{hashlib.sha256(peers).hexdigest()}"


def same_work(bound: str, vector: bytes, norm: float, heaviest: float) -> str:
    """Return a name of what the clients of a round are asked to do, part of the masks of pairs.

    Masks cancel only among clients that received the same. A server could otherwise single out one
    client by the vector it sends (Pasquini et al. 2022, arXiv 2111.07380), or by a bound or weights
    at which the updates of the others vanish.

    Args:
        bound: round and clients, see ``among``.
        vector: the encoded task vector.
        norm: to which updates are shortened.
        heaviest: the largest weight.
    """
    total = hashlib.sha256(struct.pack("<dd", norm, heaviest) + vector)
    return f"{bound}|{total.hexdigest()}"


def share_key(
    private: bytes, public: bytes, bound: str, owner: int, holder: int, key: bytes
) -> bytes:
    """Return the key that seals an owner's shares for a holder.

    Args:
        private: X25519 key of the run, of one of the two.
        public: the same of the other.
        bound: round and clients, see ``among``.
        owner: client whose secrets are shared.
        holder: client that receives the shares.
        key: the owner's public key of the round, which no other preparation has.
    """
    return keys.agreed(private, public, "shares", bound, owner, holder, key)


def pair_seed(private: bytes, public: bytes, bound: str) -> bytes:
    """Return the seed that two clients share, from the private key of one for the round.

    ``bound`` names the round, its clients and what they are asked to do, see ``same_work``.
    """
    return keys.agreed(private, public, "pair", bound)


def masked(
    levels: np.ndarray,
    facts: np.ndarray,
    bits: int,
    plus: Sequence[bytes],
    minus: Sequence[bytes],
) -> bytes:
    """Return levels [n] and facts [FACTS] plus the masks of some seeds, less those of others."""
    covered = [
        ring.pack(numbers + masks(purpose, len(numbers), width, plus, minus), width)
        for purpose, numbers, width in (("levels", levels, bits), ("facts", facts, FACT_BITS))
    ]
    return b"".join(covered)


def masks(
    purpose: str, size: int, bits: int, plus: Sequence[bytes], minus: Sequence[bytes]
) -> np.ndarray:
    """Return the sum [size] of the masks of the seeds ``plus``, less those of ``minus``."""
    streams = ([keys.derived(seed, purpose) for seed in seeds] for seeds in (plus, minus))
    added, taken = streams
    return ring.total(size, bits, plus=added, minus=taken)


def masked_size(size: int, bits: int) -> int:
    """Return the bytes of a masked update of ``size`` numbers."""
    return ring.packed_size(size, bits) + ring.packed_size(FACTS, FACT_BITS)


def unpacked(data: bytes, size: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the masked levels [size] and facts [FACTS] of received bytes.

    Raises:
        ValueError: wrong length.
    """
    expected = masked_size(size, bits)
    if len(data) != expected:
        raise ValueError(f"a masked update has {len(data)} bytes, expected {expected}")
    border = ring.packed_size(size, bits)
    return ring.unpack(data[:border], size, bits), ring.unpack(data[border:], FACTS, FACT_BITS)
