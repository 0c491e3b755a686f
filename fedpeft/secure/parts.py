"""The parts of messages of secure aggregation that both sides read and write."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedpeft.secure.keys import KEY_BYTES, SEED_BYTES

SHARES_BYTES = 2 * SEED_BYTES  # of a client's key seed, and of its mask seed
SEALED_BYTES = SHARES_BYTES + 16  # with Poly1305's tag
DIGEST_BYTES = 8


@dataclass(frozen=True)
class Member:
    """A client that masks its update, as the server tells another one.

    Attributes:
        client: its number.
        key: its public X25519 key of the round.
        sealed: its shares for the receiver; zeros in the receiver's own entry.
    """

    client: int
    key: bytes
    sealed: bytes = bytes(SEALED_BYTES)

    SIZE = 4 + KEY_BYTES + SEALED_BYTES

    def to_bytes(self) -> bytes:
        """Return SIZE bytes."""
        return self.client.to_bytes(4, "little") + self.key + self.sealed


def members(data: bytes) -> list[Member]:
    """Return the members of received bytes.

    Raises:
        ValueError: wrong length, or not in order.
    """
    found = []
    for entry in pieces(data, Member.SIZE):
        client = int.from_bytes(entry[:4], "little")
        found.append(Member(client, entry[4 : 4 + KEY_BYTES], entry[4 + KEY_BYTES :]))
    in_order([member.client for member in found])
    return found


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
