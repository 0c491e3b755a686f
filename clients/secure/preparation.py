"""A client's part in a sum under masks before it trains: introduce itself, prepare a round.

The client checks that every peer is in its roster and that the threshold is safe, and prepares a
round once; what the server says is not trusted. See ``docs/explanation/secure-aggregation.md``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from secrets import token_bytes

from clients.data.client_data import LocalData
from clients.errors import ClientError
from clients.secure import secrets
from clients.secure.secrets import NOISE_BYTES, RoundSecrets
from fedpeft.secure import keys, sharing
from fedpeft.secure.holders import holders
from fedpeft.secure.keys import SEED_BYTES, Roster
from fedpeft.secure.masks import round_context, shares_key
from fedpeft.secure.parts import Member, digest_of, peers_of, xor
from fedpeft.updates import sums
from fedpeft.wire.messages import PrepareReply


def introduce(data: LocalData) -> bytes:
    """Return how the client introduces itself to its peers in a run; empty without secure sums.

    Raises:
        ClientError: the client had another number in this run.
        Refusal: the node has no roster.
    """
    if not data.runtime.experiment.federation.secure:
        return b""
    secrets.roster(data)
    with secrets.exclusive(data):
        private = secrets.read(data).private
    registered = secrets.registered_key(data)
    return keys.introduced(registered, data.context, data.client, private).to_bytes()


def prepare(data: LocalData, number: int, listed: bytes) -> PrepareReply:
    """Make the secrets of a round and share them among the peers; the same for a repeated request.

    A round is prepared once, for one list of clients. A server could otherwise ask again until the
    random holders suit it, or until a client has received two shares of one secret.

    Args:
        data: the client's.
        number: of the round.
        listed: the clients of the round, as the server says.

    Raises:
        ClientError: a client that the roster does not know or that is listed twice, this client is
            missing, too few or too many, or a round that is over, not of the run, or prepared for
            other clients.
    """
    rounds = data.runtime.experiment.federation.rounds
    if not 1 <= number <= rounds:
        raise ClientError(f"round {number}: expected 1 to {rounds}")
    with secrets.exclusive(data):
        run = secrets.read(data)
        _check_peers(data, listed, run.private)
        latest = run.latest
        if latest is None or (latest.number, latest.peers) != (number, listed):
            if latest and number <= latest.number:
                raise ClientError(f"round {latest.number} was prepared, for its list of clients")
            _check_count(data, len(peers_of(listed)))
            key_seed, mask_seed, holder_seed = (token_bytes(SEED_BYTES) for _ in range(3))
            noise_seed = token_bytes(NOISE_BYTES)
            latest = RoundSecrets(number, listed, key_seed, mask_seed, holder_seed, noise_seed)
        shares, sealed = _shares(data, run.private, latest)
        if latest != run.latest:
            latest = replace(latest, own_share=shares[-1][SEED_BYTES:])
            secrets.write(data, replace(run, latest=latest))
    return _reply(data, run.private, latest, shares, sealed)


def _check_count(data: LocalData, clients: int) -> None:
    """Check how many clients a round has; raise ClientError."""
    experiment = data.runtime.experiment
    asked, needed = experiment.clients_summed, sums.sharing_for(experiment).survivors
    if not needed <= clients <= asked:
        raise ClientError(f"{clients} clients in the round; expected {needed} to {asked}")


def _shares(
    data: LocalData, private: bytes, latest: RoundSecrets
) -> tuple[list[bytes], list[bytes]]:
    """Return the shares of key seed and mask seed, in the order of the holders, and what is sent.

    The first t - 1 holders derive theirs; the shares of the others, but for this client's, are sent
    under one-time pads. That nothing authenticates these is harmless: a holder of a changed share
    reveals the share with the change.
    """
    peers, key = peers_of(latest.peers), keys.public_key(latest.private)
    rules = sums.sharing_for(data.runtime.experiment, len(peers))
    context = round_context(data.context, latest.number, latest.peers)
    chosen = holders(latest.holder_seed, [*peers], data.client, rules.holders)
    own = keys.private_key(private)
    pads = [
        shares_key(own, peers[holder].key, context, data.client, holder, key)
        for holder in chosen[:-1]
    ]
    derived, rest = pads[: rules.needed - 1], pads[rules.needed - 1 :]
    made = sharing.split(latest.key_seed + latest.mask_seed, derived, rules.holders)
    return derived + made, [xor(share, pad) for share, pad in zip(made, rest, strict=False)]


def _reply(
    data: LocalData,
    private: bytes,
    latest: RoundSecrets,
    shares: list[bytes],
    sealed: list[bytes],
) -> PrepareReply:
    """Return the reply to a preparation, see ``_shares``."""
    context = round_context(data.context, latest.number, latest.peers)
    key = keys.public_key(latest.private)
    member = Member.signed(private, context, data.client, key, latest.holder_seed)
    digests = [
        digest_of(share[half : half + SEED_BYTES], point)
        for point, share in enumerate(shares, 1)
        for half in (0, SEED_BYTES)
    ]
    return PrepareReply(
        key=key,
        holder_seed=member.holder_seed,
        signature=member.signature,
        sealed=b"".join(sealed),
        digests=b"".join(digests),
    )


def _check_peers(data: LocalData, listed: bytes, private: bytes) -> None:
    """Check the clients of a round, this one included; raise ClientError."""
    peers, registered = peers_of(listed), secrets.registered_key(data)
    # Also its registered key: another client could sign this one's keys of the run as its own.
    if peers.get(data.client) != keys.introduced(registered, data.context, data.client, private):
        raise ClientError("this client is not among the clients of the round")
    for part in ("name", "key", "verifier"):
        if len({getattr(peer, part) for peer in peers.values()}) < len(peers):
            raise ClientError("one key stands for two clients of the round")
    strangers = _strangers(secrets.roster(data), data.context, listed)
    if strangers:
        raise ClientError(
            f"{strangers} of {len(peers)} clients of the round are not in this node's roster, or "
            f"their keys are not signed for this run"
        )


@lru_cache(maxsize=4)  # clients of one process have one roster, and one list in a round
def _strangers(known: Roster, context: str, listed: bytes) -> int:
    return sum(not known.trusts(peer, context) for peer in peers_of(listed).values())
