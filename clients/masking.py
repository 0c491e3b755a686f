"""A client's part in a sum under masks: prepare a round, mask the update, reveal shares.

The client decides itself with whom it masks and what it reveals. It checks that every peer is in
its roster, that the threshold is safe, and that nothing contradicts what it did before; what the
server says is not trusted. See ``docs/explanation/secure-aggregation.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes

import numpy as np

from clients import secrets
from clients.data import LocalData
from clients.errors import ClientError
from clients.secrets import RoundSecrets
from fedpeft.secure import keys, ring, sharing
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
    """Make the secrets of a round and share them among the peers; the same for a repeated request.

    A round in which an update was masked is not prepared again: its peers' shares, which this
    client could then receive and reveal a second time, would be of the same secrets.

    Args:
        data: the client's.
        number: of the round.
        listed: the clients of the round, as the server says.

    Raises:
        ClientError: a client that the roster does not know or that is listed twice, this client is
            missing, too few or too many, or a round that is over or not of the run.
    """
    rounds = data.runtime.experiment.federation.rounds
    if not 1 <= number <= rounds:
        raise ClientError(f"round {number}: expected 1 to {rounds}")
    with secrets.exclusive(data):
        run = secrets.read(data)
        peers = _checked(data, listed, keys.public_key(run.private))
        latest = run.latest
        if latest is None or (latest.number, latest.peers) != (number, peers):
            if number <= run.masked_round:
                raise ClientError(f"an update was masked in round {run.masked_round}")
            latest = _new_round(data, number, peers)
            secrets.write(data, replace(run, latest=latest))
    return _shared(data, run.private, latest, listed)


def _new_round(data: LocalData, number: int, peers: dict[int, Peer]) -> RoundSecrets:
    """Return new secrets of a round."""
    experiment = data.runtime.experiment
    # Of as many clients as the experiment says: a shorter list of the server's changes nothing.
    secure, asked = experiment.secure, experiment.clients_summed
    needed = threshold(asked, secure.colluders, secure.threshold)
    if not needed <= len(peers) <= asked:
        raise ClientError(f"{len(peers)} clients in the round; expected {needed} to {asked}")
    key_seed, mask_seed, coefficients = (token_bytes(SEED_BYTES) for _ in range(3))
    made = RoundSecrets(number, needed, peers, key_seed, mask_seed, coefficients, b"")
    own = _shares(made)[1][[*peers].index(data.client)]
    return replace(made, own_share=own)


def _shares(latest: RoundSecrets) -> tuple[list[bytes], list[bytes]]:
    """Return the shares of the key seed and of the mask seed, in the order of the peers."""
    count, needed = len(latest.peers), latest.threshold
    return (
        sharing.split(latest.key_seed, count, needed, _coefficients(latest, "key")),
        sharing.split(latest.mask_seed, count, needed, _coefficients(latest, "mask")),
    )


def _coefficients(latest: RoundSecrets, purpose: str) -> bytes:
    seed = keys.derived(latest.coefficients, purpose)
    size = SEED_BYTES * (latest.threshold - 1)
    return ring.stream(seed, size, 8).astype(np.uint8).tobytes()


def _shared(data: LocalData, private: bytes, latest: RoundSecrets, listed: bytes) -> PrepareReply:
    """Return the reply to a preparation: the shares of each peer, sealed."""
    shares, peers = _shares(latest), latest.peers
    key, context = (
        keys.public_key(latest.private),
        round_context(data.context, latest.number, listed),
    )
    sealed = [
        keys.sealed(
            share_key(private, peer.key, context, data.client, client, key),
            shares[0][place] + shares[1][place],
        )
        for place, (client, peer) in enumerate(peers.items())
        if client != data.client
    ]
    digests = [digest_of(rows[p], p + 1) for p in range(len(peers)) for rows in shares]
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


Work = tuple[bytes, float, float]  # encoded vector, clip norm, largest weight


class Masking:
    """The masking of one update among checked members of a round."""

    def __init__(self, data: LocalData, number: int, listed: bytes, work: Work):
        """Check the members, before the client trains, and open the shares that they sealed for it.

        Args:
            data: the client's.
            number: of the round.
            listed: the members, as the server says.
            work: what this client is asked to do.

        Raises:
            ClientError: the round was not prepared; unknown or too few members; this client is not
                one; or others, or other work, than an update was masked for.
            ValueError: what a member sealed was not made for this round and client, or its key is
                none.
        """
        self._data, run = data, secrets.read(data)
        latest, found = run.latest, members(listed)
        if latest is None or latest.number != number:
            raise ClientError(f"round {number} was not prepared for a sum under masks")
        key = keys.public_key(latest.private)
        _check_members(latest, {member.client: member for member in found}, data.client, key)
        listing = b"".join(peer.to_bytes() for peer in latest.peers.values())
        context = round_context(data.context, number, listing)
        self._others = [member for member in found if member.client != data.client]
        self._context = request_context(context, *work)
        asked = hashlib.sha256(self._context.encode() + listed).digest()
        if latest.asked not in (b"", asked):
            raise ClientError("the keys of this round have masked an update for others")
        held = {each.client: _opened(run.private, latest, each, context, data) for each in found}
        del held[data.client]
        self._secrets = replace(latest, asked=asked, held=held)
        self._seeds = {each.client: self._pair_seed(each) for each in self._others}

    @property
    def clients(self) -> int:
        """Number of clients that the round was prepared for."""
        return len(self._secrets.peers)

    @property
    def noise_seed(self) -> bytes:
        """The seed of this client's noise; another one for each preparation of a round."""
        return self._secrets.noise_seed

    def _pair_seed(self, member: Member) -> bytes:
        pair = self._data.client, member.client
        return pair_seed(self._secrets.private, member.key, self._context, *pair)

    def mask(self, levels: np.ndarray, facts: np.ndarray, bits: int) -> bytes:
        """Return the masked levels and facts; first keep what was masked and for whom.

        Args:
            levels: of the update [S].
            facts: about it [FACTS].
            bits: of a sum of levels.

        Raises:
            ClientError: this update was masked before, or another one with these keys.
        """
        self._record(hashlib.sha256(levels.tobytes() + facts.tobytes()).digest())
        own = self._data.client
        plus = [self._secrets.mask_seed, *(self._seeds[c] for c in self._seeds if own < c)]
        minus = [seed for client, seed in self._seeds.items() if client < own]
        return masked(levels, facts, bits, plus, minus)

    def _record(self, update: bytes) -> None:
        """Keep that an update was masked, before it leaves this client."""
        with secrets.exclusive(self._data):
            run = secrets.read(self._data)
            if run.latest is None or run.latest.key_seed != self._secrets.key_seed:
                raise ClientError("the round was prepared again during the training")
            if run.latest.asked:
                if (run.latest.asked, run.latest.masked) != (self._secrets.asked, update):
                    raise ClientError("the keys of this round have masked another update")
                return
            if update in run.updates:
                raise ClientError("this update was masked before, in another round")
            self._secrets = replace(self._secrets, masked=update)
            secrets.write(self._data, run.with_masked(update, self._secrets))


def _check_members(
    latest: RoundSecrets, listed: Mapping[int, Member], own: int, key: bytes
) -> None:
    """Check the members of a round; raise ClientError."""
    if own not in listed or listed[own].key != key:
        raise ClientError("this client is not among the members of the round")
    if unknown := listed.keys() - latest.peers.keys():
        raise ClientError(f"{len(unknown)} members were not among the clients prepared for")
    if len(listed) < latest.threshold:
        raise ClientError(
            f"{len(listed)} members are fewer than the threshold of {latest.threshold}"
        )


def _opened(
    private: bytes, latest: RoundSecrets, member: Member, context: str, data: LocalData
) -> bytes:
    """Return the shares that a member sealed for this client; nothing of this client itself."""
    if member.client == data.client:
        return b""
    peer = latest.peers[member.client]
    key = share_key(private, peer.key, context, member.client, data.client, member.key)
    return keys.opened(key, member.sealed)


def reveal(data: LocalData, number: int, listed: bytes) -> bytes:
    """Return a share for each member: of its self-mask if it survived, otherwise of its key.

    Raises:
        ClientError: nothing was masked in this round; a survivor that is no member, too few of
            them, or others than before.
    """
    survivors = numbers(listed)
    with secrets.exclusive(data):
        run = secrets.read(data)
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
