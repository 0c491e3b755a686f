"""The sum of masked updates, from the shares that clients revealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpeft.secure import keys, ring, sharing
from fedpeft.secure.keys import SEED_BYTES
from fedpeft.secure.masks import FACT_BITS, masks, pair_seed
from fedpeft.secure.parts import DIGEST_BYTES, SEALED_BYTES, digest_of, pieces

Masked = tuple[np.ndarray, np.ndarray]  # levels [S] and facts [FACTS], uint64


@dataclass(frozen=True)
class Prepared:
    """What a client sent before it trained.

    Attributes:
        key: its public X25519 key of the round.
        sealed: for each other client of the round, its shares, encrypted.
        digests: for each client of the round, of both of its shares.
    """

    key: bytes
    sealed: dict[int, bytes]
    digests: dict[int, tuple[bytes, bytes]]


def checked_shares(
    data: bytes,
    holder: int,
    clients: list[int],
    prepared: Mapping[int, Prepared],
    survivors: Mapping[int, object],
) -> dict[int, bytes]:
    """Return the shares that a client revealed, by their owner.

    Args:
        data: the received bytes, which are not trusted.
        holder: the client.
        clients: of the round; a holder's place in the list is the point of its shares.
        prepared: of the members, in order.
        survivors: members whose masked update arrived.

    Raises:
        ValueError: wrong length, or a share that its owner did not make.
    """
    shares, point = {}, clients.index(holder) + 1
    for owner, share in zip(prepared, pieces(data, SEED_BYTES, len(prepared)), strict=True):
        if digest_of(share, point) != prepared[owner].digests[holder][owner in survivors]:
            raise ValueError(f"its share of client {owner} is not the one that client made")
        shares[owner] = share
    return shares


def unmasked(
    masked: Mapping[int, Masked],
    prepared: Mapping[int, Prepared],
    revealed: Mapping[int, Mapping[int, bytes]],
    clients: list[int],
    context: str,
    bits: int,
) -> Masked:
    """Return the sums of levels and facts of the clients whose masked updates arrived.

    Args:
        masked: their updates.
        prepared: of all members.
        revealed: shares by holder and owner, of as many holders as the threshold says.
        clients: of the round.
        context: what the clients agree on, see ``fedpeft.secure.masks.request_context``.
        bits: of a sum of levels.

    Raises:
        ValueError: the shares give no key of a lost member.
    """
    points = [clients.index(holder) + 1 for holder in revealed]
    rows = [[shares[owner] for shares in revealed.values()] for owner in prepared]
    secrets = dict(zip(prepared, sharing.combine(points, rows), strict=True))
    plus: list[bytes] = []
    minus = [secrets[client] for client in masked]
    for lost in prepared.keys() - masked.keys():
        private = keys.derived(secrets[lost], "round key")
        if keys.public_key(private) != prepared[lost].key:
            raise ValueError(f"client {lost} shared another key than it announced")
        for client in masked:
            seed = pair_seed(private, prepared[client].key, context, client, lost)
            # Of a pair, the client with the smaller number added the mask, see ``Masking.mask``.
            (minus if client < lost else plus).append(seed)
    levels, facts = (np.sum(rows, axis=0) for rows in zip(*masked.values(), strict=True))
    return (
        ring.reduced(levels + masks("levels", len(levels), bits, plus, minus), bits),
        ring.reduced(facts + masks("facts", len(facts), FACT_BITS, plus, minus), FACT_BITS),
    )


def read_prepared(
    key: bytes, sealed: bytes, digests: bytes, client: int, clients: list[int]
) -> Prepared:
    """Return the content of a client's reply to a preparation, which is not trusted.

    Raises:
        ValueError: wrong lengths.
    """
    keys.agreed(bytes(range(keys.KEY_BYTES)), key)  # fails if no secret can be agreed with it
    others = [other for other in clients if other != client]
    texts = pieces(sealed, SEALED_BYTES, len(others))
    both = pieces(digests, 2 * DIGEST_BYTES, len(clients))
    return Prepared(
        key,
        dict(zip(others, texts, strict=True)),
        {
            holder: (each[:DIGEST_BYTES], each[DIGEST_BYTES:])
            for holder, each in zip(clients, both, strict=True)
        },
    )
