"""The sum of masked updates, from the shares that clients revealed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpeft.secure import keys, ring, sharing
from fedpeft.secure.holders import holders
from fedpeft.secure.keys import SEED_BYTES, Peer
from fedpeft.secure.masks import FACT_BITS, masks, pair_seed, self_seed
from fedpeft.secure.parts import DIGEST_BYTES, SHARES_BYTES, Member, digest_of, pieces
from fedpeft.secure.thresholds import Sharing
from fedpeft.wire.messages import PrepareReply

Masked = tuple[np.ndarray, np.ndarray]  # levels [S] and facts [FACTS], uint64


@dataclass(frozen=True)
class Prepared:
    """What a client sent before it trained.

    Attributes:
        member: the client, as the others are told.
        sealed: its shares under one-time pads, of each holder that does not derive them.
        digests: for each holder, of both of its shares; in the order of their points, from 1.
    """

    member: Member
    sealed: dict[int, bytes]
    digests: dict[int, tuple[bytes, bytes]]

    @cached_property
    def points(self) -> dict[int, int]:
        """The points of the shares by holder."""
        return {holder: point for point, holder in enumerate(self.digests, 1)}


def read_prepared(
    sent: PrepareReply, peer: Peer, clients: Sequence[int], context: str, rules: Sharing
) -> Prepared:
    """Return the content of a client's reply to a preparation, which is not trusted.

    Args:
        sent: the reply.
        peer: the client, as it introduced itself.
        clients: of the round.
        context: round and clients, see ``fedpeft.secure.masks.round_context``.
        rules: who shares with how many.

    Raises:
        ValueError: wrong lengths, or a key that is not signed or with which nothing can be agreed.
    """
    member = Member(peer.client, sent.key, sent.holder_seed, sent.signature)
    if len(member.to_bytes()) != Member.SIZE or not member.is_signed(peer.verifier, context):
        raise ValueError("its key of the round is not signed by its key of the run")
    # Fails if no secret can be agreed with it.
    keys.agreed(keys.private_key(bytes(range(keys.KEY_BYTES))), sent.key)
    chosen = holders(sent.holder_seed, clients, peer.client, rules.holders)
    sealed = chosen[rules.needed - 1 : -1]
    texts = pieces(sent.sealed, SHARES_BYTES, len(sealed))
    both = pieces(sent.digests, 2 * DIGEST_BYTES, len(chosen))
    digests = [(each[:DIGEST_BYTES], each[DIGEST_BYTES:]) for each in both]
    return Prepared(
        member,
        dict(zip(sealed, texts, strict=True)),
        dict(zip(chosen, digests, strict=True)),
    )


def checked_shares(
    data: bytes, holder: int, prepared: Mapping[int, Prepared], survivors: Collection[int]
) -> dict[int, bytes]:
    """Return the shares that a client revealed, by their owner.

    Args:
        data: the received bytes, which are not trusted.
        holder: the client.
        prepared: of the members, in order.
        survivors: members whose masked update arrived.

    Raises:
        ValueError: wrong length, or a share that its owner did not make.
    """
    owners = [owner for owner, made in prepared.items() if holder in made.digests]
    shares = dict(zip(owners, pieces(data, SEED_BYTES, len(owners)), strict=True))
    for owner, share in shares.items():
        made = prepared[owner]
        if digest_of(share, made.points[holder]) != made.digests[holder][owner in survivors]:
            raise ValueError(f"its share of client {owner} is not the one that client made")
    return shares


def enough(
    prepared: Mapping[int, Prepared], revealed: Mapping[int, Mapping[int, bytes]], needed: int
) -> dict[int, dict[int, bytes]]:
    """Return ``needed`` shares of each owner, by their points.

    Args:
        prepared: of all members, the owners.
        revealed: shares by holder and owner.
        needed: shares that reveal a secret.

    Raises:
        ValueError: an owner has fewer.
    """
    chosen = {}
    for owner, made in prepared.items():
        shares = {
            point: revealed[holder][owner]
            for holder, point in made.points.items()
            if holder in revealed
        }
        if len(shares) < needed:
            raise ValueError(
                f"{len(shares)} of {len(made.digests)} holders revealed a share of client "
                f"{owner}'s secret, and it takes {needed}"
            )
        chosen[owner] = dict([*shares.items()][:needed])
    return chosen


def unmasked(
    masked: Mapping[int, Masked],
    prepared: Mapping[int, Prepared],
    shares: Mapping[int, Mapping[int, bytes]],
    context: str,
    bits: int,
) -> Masked:
    """Return the sums of levels and facts of the clients whose masked updates arrived.

    Args:
        masked: their updates.
        prepared: of all members.
        shares: of all members, by their points, see ``enough``.
        context: what the clients agree on, see ``fedpeft.secure.masks.request_context``.
        bits: of a sum of levels.

    Raises:
        ValueError: the shares give no key of a lost member.
    """
    rows = shares.values()
    combined = sharing.combine([[*row] for row in rows], [[*row.values()] for row in rows])
    secrets = dict(zip(shares, combined, strict=True))
    size = len(next(iter(masked.values()))[0])

    def left_by(lost: int) -> Masked:
        """Return what a lost client's key left in the sum."""
        return masks(size, bits, *_pair_seeds(lost, secrets[lost], masked, prepared, context))

    selves = masks(size, bits, [], [self_seed(secrets[client]) for client in masked])
    lost = [client for client in prepared if client not in masked]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # ``cryptography`` lets threads run together
        parts = [*masked.values(), selves, *pool.map(left_by, lost)]
    levels, facts = (np.sum(column, axis=0) for column in zip(*parts, strict=True))
    return ring.reduced(levels, bits), ring.reduced(facts, FACT_BITS)


def _pair_seeds(
    lost: int,
    secret: bytes,
    survivors: Iterable[int],
    prepared: Mapping[int, Prepared],
    context: str,
) -> tuple[list[bytes], list[bytes]]:
    """Return the seeds of a lost client's masks that are to be added, and those to be removed."""
    private = keys.derived(secret, "round key")
    if keys.public_key(private) != prepared[lost].member.key:
        raise ValueError(f"client {lost} shared another key than it announced")
    plus: list[bytes] = []
    minus: list[bytes] = []
    key = keys.private_key(private)
    for client in survivors:
        seed = pair_seed(key, prepared[client].member.key, context, client, lost)
        # Of a pair, the client with the smaller number added the mask, see ``Masking.mask``.
        (minus if client < lost else plus).append(seed)
    return plus, minus
