"""A client's part in a sum under masks after it prepared a round: mask the update, reveal shares.

The client decides itself with whom it masks and what it reveals. It checks that nothing contradicts
what it did before; what the server says is not trusted. See
``docs/explanation/secure-aggregation.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from clients.data.client_data import LocalData
from clients.errors import ClientError
from clients.secure import secrets
from clients.secure.secrets import RoundSecrets
from fedpeft.secure import keys
from fedpeft.secure.holders import points
from fedpeft.secure.keys import SEED_BYTES
from fedpeft.secure.masks import (
    masked,
    pair_seed,
    request_context,
    round_context,
    self_seed,
    shares_key,
)
from fedpeft.secure.parts import SHARES_BYTES, Member, members, numbers, peers_of, pieces, xor
from fedpeft.secure.thresholds import Sharing
from fedpeft.updates import sums

Work = tuple[bytes, float, float]  # encoded vector, clip norm, largest weight


class Masking:
    """The masking of one update among checked members of a round."""

    def __init__(self, data: LocalData, number: int, listed: bytes, sealed: bytes, work: Work):
        """Check the members, before the client trains, and open the shares that they sent it.

        Args:
            data: the client's.
            number: of the round.
            listed: the members, as the server says.
            sealed: the shares that members sent this client.
            work: what this client is asked to do.

        Raises:
            ClientError: the round was not prepared; unknown or too few members; this client is not
                one; a member's key is not signed for this round; or others, or other work, than an
                update was masked for.
            ValueError: a wrong length, or a key with which nothing can be agreed.
        """
        self._data, run = data, secrets.read(data)
        latest, found = run.latest, members(listed)
        if latest is None or latest.number != number:
            raise ClientError(f"round {number} was not prepared for a sum under masks")
        peers = peers_of(latest.peers)
        rules = sums.sharing_for(data.runtime.experiment, len(peers))
        by_client = {member.client: member for member in found}
        _check_members(latest, by_client, data.client, rules)
        context = round_context(data.context, number, latest.peers)
        if unsigned := _unsigned(context, latest.peers, listed):
            raise ClientError(f"{unsigned} keys of members are not signed for this round")
        self._context = request_context(context, *work)
        asked = _digest(self._context.encode(), listed, sealed)
        if latest.asked not in (b"", asked):
            raise ClientError("the keys of this round have masked an update for others")
        held = _held(data, run.private, latest, by_client, sealed, rules)
        self._secrets = replace(latest, asked=asked, held=held, members=[*by_client])
        self._seeds = self._pair_seeds(found)

    @property
    def noise_seed(self) -> bytes:
        """The seed of this client's noise; another one for each round and run."""
        return self._secrets.noise_seed

    @property
    def clients(self) -> int:
        """Number of clients that the round was prepared for."""
        return len(peers_of(self._secrets.peers))

    def _pair_seeds(self, listed: Sequence[Member]) -> dict[int, bytes]:
        private, own = keys.private_key(self._secrets.private), self._data.client
        return {
            member.client: pair_seed(private, member.key, self._context, own, member.client)
            for member in listed
            if member.client != own
        }

    def mask(self, levels: np.ndarray, facts: np.ndarray, bits: int) -> bytes:
        """Return the masked levels and facts; first keep what was masked and for whom.

        Args:
            levels: of the update [S].
            facts: about it [FACTS].
            bits: of a sum of levels.

        Raises:
            ClientError: another update was masked with these keys.
        """
        self._record(hashlib.sha256(levels.tobytes() + facts.tobytes()).digest())
        own = self._data.client
        plus = [seed for client, seed in self._seeds.items() if own < client]
        minus = [seed for client, seed in self._seeds.items() if client < own]
        return masked(levels, facts, bits, [self_seed(self._secrets.mask_seed), *plus], minus)

    def _record(self, update: bytes) -> None:
        """Keep that an update was masked, before it leaves this client."""
        with secrets.exclusive(self._data):
            run = secrets.read(self._data)
            if run.latest is None or run.latest.key_seed != self._secrets.key_seed:
                raise ClientError("the next round was prepared during the training")
            if run.latest.asked:
                if (run.latest.asked, run.latest.masked) != (self._secrets.asked, update):
                    raise ClientError("the keys of this round have masked another update")
                return
            self._secrets = replace(self._secrets, masked=update)
            secrets.write(self._data, replace(run, latest=self._secrets))


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _check_members(
    latest: RoundSecrets, listed: Mapping[int, Member], own: int, rules: Sharing
) -> None:
    """Check the members of a round; raise ClientError."""
    key = keys.public_key(latest.private)
    if own not in listed or (listed[own].key, listed[own].holder_seed) != (key, latest.holder_seed):
        raise ClientError("this client is not among the members of the round")
    if len({member.key for member in listed.values()}) < len(listed):
        raise ClientError("one key of the round stands for two members")
    if unknown := listed.keys() - peers_of(latest.peers).keys():
        raise ClientError(f"{len(unknown)} members were not among the clients prepared for")
    if len(listed) < rules.survivors:
        raise ClientError(
            f"{len(listed)} members are fewer than the threshold of {rules.survivors}"
        )


@lru_cache(maxsize=4)  # clients of one process receive one list in a round
def _unsigned(context: str, peers: bytes, listed: bytes) -> int:
    """Return how many members have a key that their key of the run did not sign."""
    known = peers_of(peers)
    return sum(not each.is_signed(known[each.client].verifier, context) for each in members(listed))


def _held(
    data: LocalData,
    private: bytes,
    latest: RoundSecrets,
    listed: Mapping[int, Member],
    sealed: bytes,
    rules: Sharing,
) -> dict[int, bytes]:
    """Return the shares that this client holds, by their owner, without its own."""
    peers, own, run_key = peers_of(latest.peers), data.client, keys.private_key(private)
    context = round_context(data.context, latest.number, latest.peers)
    seeds = {client: member.holder_seed for client, member in listed.items()}
    held = points(seeds, [*peers], own, rules.holders)
    del held[own]
    sent = [owner for owner, point in held.items() if point >= rules.needed]
    texts = dict(zip(sent, pieces(sealed, SHARES_BYTES, len(sent)), strict=True))
    shares = {}
    for owner in held:
        key = listed[owner].key
        share = shares_key(run_key, peers[owner].key, context, owner, own, key)
        shares[owner] = xor(share, texts[owner]) if owner in texts else share
    return shares


def reveal(data: LocalData, number: int, listed: bytes) -> bytes:
    """Return a share for each member that shared with this client, in order.

    Of its self-mask if it survived, otherwise of its key.

    Raises:
        ClientError: nothing was masked in this round; a survivor that is no member; too few
            survivors, or too few of those whose shares it holds; or others than before.
    """
    survivors = numbers(listed)
    with secrets.exclusive(data):
        run = secrets.read(data)
        latest = run.latest
        if latest is None or latest.number != number or not latest.masked:
            raise ClientError(f"this client has masked nothing in round {number}")
        _check_survivors(data, latest, survivors)
        if latest.survivors is None:
            secrets.write(data, replace(run, latest=replace(latest, survivors=survivors)))
    alive, shares = {*survivors}, {data.client: latest.own_share}
    for client, held in latest.held.items():
        key_share, mask_share = pieces(held, SEED_BYTES, 2)
        shares[client] = mask_share if client in alive else key_share
    return b"".join(shares[client] for client in sorted(shares))


def _check_survivors(data: LocalData, latest: RoundSecrets, survivors: Sequence[int]) -> None:
    rules = sums.sharing_for(data.runtime.experiment, len(peers_of(latest.peers)))
    if latest.survivors not in (None, survivors):
        raise ClientError("other survivors than this client has revealed shares for")
    if data.client not in survivors:
        raise ClientError("this client is not among the survivors")
    if unknown := {*survivors} - {*latest.members}:
        raise ClientError(f"{len(unknown)} survivors are no members of the round")
    if len(survivors) < rules.survivors:
        raise ClientError(
            f"{len(survivors)} survivors are fewer than the threshold of {rules.survivors}"
        )
    lost = len(latest.held.keys() - {*survivors})
    if lost > rules.lost:
        raise ClientError(
            f"{lost} of {len(latest.held)} members whose shares this client holds are called lost; "
            f"expected at most {rules.lost}"
        )
