"""The parts of messages of secure aggregation that both sides read and write."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np

from fedpeft.secure.keys import (
    KEY_BYTES,
    ROUND_SIGNATURE_BYTES,
    SEED_BYTES,
    Peer,
    round_signature,
    round_signed,
)

SHARES_BYTES = 2 * SEED_BYTES  # of a client's key seed, and of its mask seed
DIGEST_BYTES = 4


@dataclass(frozen=True)
class Member:
    """A client that masks its update, as the server tells the others.

    Attributes:
        client: its number.
        key: its public X25519 key of the round.
        holder_seed: of the choice of its holders, see ``fedpeft.secure.holders``.
        signature: of both, for the round, by its Ed25519 key of the run.
    """

    client: int
    key: bytes
    holder_seed: bytes
    signature: bytes

    SIZE = 4 + KEY_BYTES + SEED_BYTES + ROUND_SIGNATURE_BYTES

    def to_bytes(self) -> bytes:
        """Return SIZE bytes."""
        return self.client.to_bytes(4, "little") + self.key + self.holder_seed + self.signature

    @classmethod
    def signed(
        cls, private: bytes, context: str, client: int, key: bytes, holder_seed: bytes
    ) -> Member:
        """Return a member whose key of the run signed the others for a round."""
        signature = round_signature(private, context, client, key, holder_seed)
        return cls(client, key, holder_seed, signature)

    def is_signed(self, verifier: bytes, context: str) -> bool:
        """Return whether the Ed25519 key of the run signed this for the round."""
        about = context, self.client, self.key, self.holder_seed
        return round_signed(verifier, self.signature, *about)


@lru_cache(maxsize=4)
def members(data: bytes) -> tuple[Member, ...]:
    """Return the members of received bytes.

    Raises:
        ValueError: wrong length, or not in order.
    """
    ends = [*accumulate((4, KEY_BYTES, SEED_BYTES, ROUND_SIGNATURE_BYTES))]
    found = []
    for entry in pieces(data, Member.SIZE):
        client, *parts = (entry[start:end] for start, end in pairwise([0, *ends]))
        found.append(Member(int.from_bytes(client, "little"), *parts))
    in_order([member.client for member in found])
    return tuple(found)


@lru_cache(maxsize=4)  # clients of one process have one list in a round
def peers_of(data: bytes) -> Mapping[int, Peer]:
    """Return the peers of received bytes by number.

    Raises:
        ValueError: wrong length, or not in order.
    """
    entries = [Peer.from_bytes(entry) for entry in pieces(data, Peer.SIZE)]
    in_order([peer.client for peer in entries])
    return MappingProxyType({peer.client: peer for peer in entries})


def xor(one: bytes, other: bytes) -> bytes:
    """Return the bitwise sum of two texts of the same length."""
    return np.bitwise_xor(*(np.frombuffer(each, np.uint8) for each in (one, other))).tobytes()


def pieces(data: bytes, size: int, count: int | None = None) -> list[bytes]:
    """Return received bytes in pieces of ``size``.

    Raises:
        ValueError: wrong length, or not ``count`` pieces.
    """
    if len(data) % size or (count is not None and len(data) != size * count):
        expected = f"{size * count}" if count is not None else f"a multiple of {size}"
        raise ValueError(f"a list has {len(data)} bytes, expected {expected}")
    return [data[start : start + size] for start in range(0, len(data), size)]


def in_order(clients: Sequence[int]) -> None:
    """Raise ValueError unless clients are in ascending order, each of them once."""
    if any(one >= other for one, other in pairwise(clients)):
        raise ValueError("a list of clients is not in order, or names a client twice")


def numbers(data: bytes) -> list[int]:
    """Return the client numbers of received bytes, see ``in_order``."""
    if len(data) % 4:
        raise ValueError(f"a list of clients has {len(data)} bytes, expected a multiple of 4")
    clients = [int(client) for client in np.frombuffer(data, "<u4")]
    in_order(clients)
    return clients


def to_numbers(clients: Iterable[int]) -> bytes:
    """Return client numbers as bytes."""
    return np.array([*clients], "<u4").tobytes()


def digest_of(share: bytes, point: int) -> bytes:
    """Return the digest by which a wrong share is recognized; a share is 16 random bytes."""
    return hashlib.sha256(point.to_bytes(2, "little") + share).digest()[:DIGEST_BYTES]
