"""A client's part in a sum under masks: prepare a round, mask the update, reveal shares.

The client decides itself with whom it masks and what it reveals. It checks that every peer is in
its roster, that the threshold is safe, and that nothing contradicts what it did before; what the
server says is not trusted. See ``docs/explanation/secure-aggregation.md``.
"""

from __future__ import annotations

import hashlib
import secrets as random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clients import secrets
from clients.data import LocalData
from clients.errors import ClientError
from clients.secrets import RoundSecrets
from fedpeft.secure import keys, sharing
from fedpeft.secure.keys import SEED_BYTES, Peer
from fedpeft.secure.masks import masked, pair_seed, request_context, round_context, share_key
from fedpeft.secure.parts import Member, digest_of, in_order, members, numbers, pieces
from fedpeft.secure.thresholds import threshold
from fedpeft.wire.messages import PrepareReply


def introduce(data: LocalData) -> bytes:
    """Return how the client introduces itself to its peers in a run; empty without secure sums.

    Raises:
        Refusal: the node has no roster.
    """
    if not data.runtime.experiment.federation.secure:
        return b""
    secrets.roster(data)
    public = keys.public_key(secrets.read(data).private)
    registered = secrets.registered_key(data)
    return keys.introduced(registered, data.context, data.client, public).to_bytes()


def prepare(data: LocalData, number: int, listed: bytes) -> PrepareReply:
    """Make the secrets of a round and share them among the peers.

    Args:
        data: the client's.
        number: of the round.
        listed: the clients of the round, as the server says.

    Raises:
        ClientError: a client that the roster does not know or that is listed twice, this client is
            missing, or no such round.
        UserError: no threshold is safe.
    """
    rounds = data.runtime.experiment.federation.rounds
    if not 1 <= number <= rounds:
        raise ClientError(f"round {number}: expected 1 to {rounds}")
    run = secrets.read(data)
    peers = _checked(data, listed, keys.public_key(run.private))
    settings = data.runtime.experiment.secure
    least = threshold(len(peers), settings.colluders, settings.threshold)
    seeds = random.token_bytes(SEED_BYTES), random.token_bytes(SEED_BYTES)
    shares = [
        sharing.split(seed, len(peers), least, random.token_bytes(SEED_BYTES * (least - 1)))
        for seed in seeds
    ]
    places = {client: place for place, client in enumerate(peers)}
    own = shares[1][places[data.client]]
    latest = RoundSecrets(number, least, peers, *seeds, own)
    secrets.write(data, replace(run, latest=latest))
    key, context = keys.public_key(latest.private), round_context(data.context, number, listed)
    sealed = [
        keys.sealed(
            share_key(run.private, peer.key, context, data.client, client, key),
            shares[0][places[client]] + shares[1][places[client]],
        )
        for client, peer in peers.items()
        if client != data.client
    ]
    digests = [digest_of(rows[p], p + 1) for p in places.values() for rows in shares]
    return PrepareReply(key=key, sealed=b"".join(sealed), digests=b"".join(digests))


def _checked(data: LocalData, listed: bytes, own: bytes) -> dict[int, Peer]:
    """Return the peers of a round, this client included, by number."""
    entries = [Peer.from_bytes(entry) for entry in pieces(listed, Peer.SIZE)]
    in_order([peer.client for peer in entries])
    peers = {peer.client: peer for peer in entries}
    if data.client not in peers or peers[data.client].key != own:
        raise ClientError("this client is not among the clients of the round")
    if len({peer.name for peer in entries}) < len(peers):
        raise ClientError("a registered key stands for two clients of the round")
    known = secrets.roster(data)
    strangers = sum(not known.trusts(peer, data.context) for peer in entries)
    if strangers:
        raise ClientError(
            f"{strangers} of {len(peers)} clients of the round are not in this node's roster, or "
            f"their keys are not signed for this run"
        )
    return peers


Work = tuple[bytes, float, float]


class Masking:
    """The masking of one update among checked members of a round."""

    def __init__(self, data: LocalData, number: int, listed: bytes):
        """Check the members, and keep the shares that they have sealed for this client.

        Raises:
            ClientError: the round was not prepared; unknown or too few members; or this client is
                not one.
            ValueError: what a member sealed was not made for this round and client.
        """
        self._data, self._run = data, secrets.read(data)
        latest, found = self._run.latest, members(listed)
        if latest is None or latest.number != number:
            raise ClientError(f"round {number} was not prepared for a sum under masks")
        listing = b"".join(peer.to_bytes() for peer in latest.peers.values())
        self._context = round_context(data.context, number, listing)
        self._members = {member.client: member for member in found}
        key = keys.public_key(latest.private)
        if data.client not in self._members or self._members[data.client].key != key:
            raise ClientError("this client is not among the members of the round")
        if unknown := self._members.keys() - latest.peers.keys():
            raise ClientError(f"{len(unknown)} members were not among the clients prepared for")
        if len(found) < latest.threshold:
            raise ClientError(
                f"{len(found)} members are fewer than the threshold of {latest.threshold}"
            )
        self._secrets = replace(
            latest, held={member.client: self._open(latest, member) for member in self._others}
        )

    @property
    def _others(self) -> list[Member]:
        return [each for client, each in self._members.items() if client != self._data.client]

    @property
    def clients(self) -> int:
        """Number of clients that the round was prepared for."""
        return len(self._secrets.peers)

    def _open(self, latest: RoundSecrets, member: Member) -> bytes:
        peer, own = latest.peers[member.client], self._data.client
        about = (self._context, member.client, own, member.key)
        return keys.opened(share_key(self._run.private, peer.key, *about), member.sealed)

    def mask(self, levels: np.ndarray, facts: np.ndarray, bits: int, work: Work) -> bytes:
        """Return the masked levels and facts; first keep what was masked and for whom.

        Args:
            levels: of the update [S].
            facts: about it [FACTS].
            bits: of a sum of levels.
            work: what this client was asked to do: encoded vector, clip norm, largest weight.

        Raises:
            ClientError: this update was masked before, for other members, or another update for
                these.
        """
        update = hashlib.sha256(levels.tobytes()).digest()
        members = [(each.client.to_bytes(4, "little"), each.key) for each in self._members.values()]
        about = hashlib.sha256(update + b"".join(map(b"".join, members))).digest()
        if self._secrets.masked not in (b"", about):
            raise ClientError("the keys of this round have masked another update, or for others")
        if not self._secrets.masked:
            if update in self._run.updates:
                raise ClientError("this update was masked before, for other members")
            self._secrets = replace(self._secrets, masked=about)
            secrets.write(self._data, self._run.with_masked(update, self._secrets))
        own, name = self._data.client, request_context(self._context, *work)
        seeds = {
            member.client: pair_seed(self._secrets.private, member.key, name)
            for member in self._others
        }
        plus = [self._secrets.mask_seed, *(seeds[client] for client in seeds if own < client)]
        minus = [seed for client, seed in seeds.items() if client < own]
        return masked(levels, facts, bits, plus, minus)


def reveal(data: LocalData, number: int, listed: bytes) -> bytes:
    """Return a share for each member: of its self-mask if it survived, otherwise of its key.

    Raises:
        ClientError: nothing was masked in this round; a survivor that is no member, too few of
            them, or others than before.
    """
    run, survivors = secrets.read(data), numbers(listed)
    latest = run.latest
    if latest is None or latest.number != number or not latest.masked:
        raise ClientError(f"this client has masked nothing in round {number}")
    _check_survivors(latest, survivors, data.client)
    if latest.survivors is None:
        secrets.write(data, replace(run, latest=replace(latest, survivors=survivors)))
    shares = []
    for client in sorted({data.client, *latest.held}):
        if client == data.client:
            shares.append(latest.own_share)
        else:
            key_share, mask_share = pieces(latest.held[client], SEED_BYTES, 2)
            shares.append(mask_share if client in survivors else key_share)
    return b"".join(shares)


def _check_survivors(latest: RoundSecrets, survivors: Sequence[int], own: int) -> None:
    if latest.survivors not in (None, survivors):
        raise ClientError("other survivors than this client has revealed shares for")
    if own not in survivors:
        raise ClientError("this client is not among the survivors")
    if unknown := {*survivors} - {own, *latest.held}:
        raise ClientError(f"{len(unknown)} survivors are no members of the round")
    if len(survivors) < latest.threshold:
        raise ClientError(
            f"{len(survivors)} survivors are fewer than the threshold of {latest.threshold}"
        )
