"""Masks of an update: a stream for each seed, for a few facts and for the levels."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.secure import keys, ring

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FACTS = 2  # the norm of the update and the training loss, see ``fedpeft.updates.sums``
FACT_BITS = 48


def run_context(digest: str, run: str) -> str:
    """Return the context of a run: the experiment's digest, and the name of a deployment's run."""
    return f"{digest}|{run}"


def round_context(run: str, number: int, peers: bytes) -> str:
    """Return the HKDF context of a round and its clients, part of all keys and masks of the round.

    Clients to whom the server names other clients of the round refuse each other's keys.

    Args:
        run: experiment and run, see ``run_context``.
        number: of the round.
        peers: the clients, see ``fedpeft.secure.keys.Peer``.
    """
    return f"{run}|{number}|{hashlib.sha256(peers).hexdigest()}"


def request_context(context: str, vector: bytes, clip_norm: float, max_weight: float) -> str:
    """Return the HKDF context of what clients are asked to do, part of the masks of pairs.

    Masks cancel only among clients that received the same. A server could otherwise single out one
    client by the vector it sends (Pasquini et al. 2022, arXiv 2111.07380), or by a norm or weights
    at which the updates of the others vanish.

    Args:
        context: round and clients, see ``round_context``.
        vector: the encoded task vector.
        clip_norm: at which updates are clipped.
        max_weight: the largest weight.
    """
    total = hashlib.sha256(struct.pack("<dd", clip_norm, max_weight) + vector)
    return f"{context}|{total.hexdigest()}"


def shares_key(
    private: X25519PrivateKey, public: bytes, context: str, owner: int, holder: int, key: bytes
) -> bytes:
    """Return 32 bytes that an owner and a holder of its shares have in common.

    They are the holder's shares, or hide them as a one-time pad.

    Args:
        private: X25519 key of the run, of one of the two.
        public: the same of the other.
        context: round and clients, see ``round_context``.
        owner: client whose secrets are shared.
        holder: client that receives the shares.
        key: the owner's public key of the round, which no other preparation has.
    """
    return keys.agreed(private, public, "shares", context, owner, holder, key)


def pair_seed(
    private: X25519PrivateKey, public: bytes, context: str, one: int, other: int
) -> bytes:
    """Return the seed that two clients share, from the private key of one for the round.

    ``context`` names the round, its clients and what they are asked to do, see ``request_context``.
    The clients' numbers are part of it: one that announces another's key as its own gets no mask of
    that pair.
    """
    return keys.agreed(private, public, "pair", context, min(one, other), max(one, other))


def self_seed(secret: bytes) -> bytes:
    """Return the seed of a client's self-mask, from the secret that it shares."""
    return keys.derived(secret, "self-mask")


def masked(
    levels: np.ndarray,
    facts: np.ndarray,
    bits: int,
    plus: Iterable[bytes],
    minus: Iterable[bytes],
) -> bytes:
    """Return levels [n] and facts [FACTS] plus the masks of some seeds, less those of others."""
    masks_of_levels, masks_of_facts = masks(len(levels), bits, plus, minus)
    covered = ring.pack(levels + masks_of_levels, bits)
    return covered + ring.pack(facts + masks_of_facts, FACT_BITS)


def masks(
    size: int, bits: int, plus: Iterable[bytes], minus: Iterable[bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the masks of the seeds ``plus``, less those of ``minus``.

    Returns:
        For the levels [size] and for the facts [FACTS].
    """
    facts, levels = ring.total([(FACTS, FACT_BITS), (size, bits)], plus=plus, minus=minus)
    return levels, facts


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
