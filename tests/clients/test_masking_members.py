"""A client checks the members of a sum: who they are, how many, and whether their keys are signed.

Each test of an attack is named in ``docs/explanation/secure-aggregation-proofs.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sums import Federation, updates

from clients.errors import ClientError
from clients.secure import secrets
from clients.secure.preparation import prepare
from fedpeft.experiment.config import Experiment
from fedpeft.secure import keys
from fedpeft.secure.keys import Peer
from fedpeft.secure.masks import pair_seed
from fedpeft.secure.parts import Member

Quick = Callable[..., Experiment]


def test_a_colluder_with_anothers_key_cancels_no_mask(ten: Federation) -> None:
    """Client 0 announces the key of client 9 to client 4, between whose numbers it lies."""
    prepared = ten.prepare()
    private, key = secrets.read(ten.data[0]).private, prepared[9].member.key
    made = Member.signed(private, ten.context(), 0, key, prepared[0].member.holder_seed)
    with pytest.raises(ClientError, match="one key of the round stands for two members"):
        ten.masking({**prepared, 0: replace(prepared[0], member=made)}, 4)
    latest = secrets.read(ten.data[4]).latest  # nor would its masks cancel
    assert latest
    own = keys.private_key(latest.private)
    assert pair_seed(own, key, ten.context(), 4, 0) != pair_seed(own, key, ten.context(), 4, 9)


def test_a_short_list_of_clients_does_not_lower_the_threshold(ten: Federation) -> None:
    with pytest.raises(ClientError, match="3 clients in the round; expected 8 to 10"):
        ten.prepare(1, [0, 1, 2])
    nine = ten.prepare(1, range(9))
    few = {client: nine[client] for client in range(7)}
    with pytest.raises(ClientError, match="7 members are fewer than the threshold of 8"):
        ten.masking(few, 0)


def test_too_few_members_are_refused(ten: Federation) -> None:
    prepared = ten.prepare()
    few = {client: prepared[client] for client in range(7)}
    with pytest.raises(ClientError, match="7 members are fewer than the threshold of 8"):
        ten.mask(few, 0, updates([0])[0])


@pytest.mark.parametrize("part", ["key", "holder_seed", "signature"])
def test_exchanged_keys_and_holders_are_refused(ten: Federation, part: str) -> None:
    """The server puts a key of its own, or holders that suit it, in the place of a client's."""
    prepared = ten.prepare()
    made = prepared[3].member
    other = Member(4, keys.public_key(bytes(range(32))), bytes(16), prepared[4].member.signature)
    prepared[3] = replace(prepared[3], member=replace(made, **{part: getattr(other, part)}))
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(prepared, 0)


def test_a_round_for_which_clients_were_told_other_peers_is_refused(
    quick: Quick, tmp_path: Path
) -> None:
    """A small list for one client would make its secrets cheap to reveal."""
    ten = Federation(quick("federation.secure=true", "federation.clients=10"), tmp_path)
    few = [*range(8)]
    made = ten.read(3, prepare(ten.data[3], 1, ten.listed(few)), 1, few)
    prepared = {3: made}
    for client in ten.clients:
        if client != 3:
            reply = prepare(ten.data[client], 1, ten.listed())
            prepared[client] = ten.read(client, reply, 1, ten.clients)
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(dict(sorted(prepared.items())), 0)


def test_strangers_and_unsigned_keys_are_refused(ten: Federation) -> None:
    peers = dict(ten.peers)
    ten.peers[4] = ten.stranger(4, seed=99)
    with pytest.raises(ClientError, match="1 of 10 clients of the round are not in this node's"):
        ten.prepare()
    unsigned = replace(Peer.from_bytes(peers[4]), signature=bytes(96))
    ten.peers[4] = unsigned.to_bytes()
    with pytest.raises(ClientError, match="or their keys are not signed for this run"):
        ten.prepare()
    ten.peers[4] = replace(Peer.from_bytes(peers[4]), key=bytes(range(32))).to_bytes()
    with pytest.raises(ClientError, match="1 of 10"):
        ten.prepare()


def test_keys_signed_for_another_run_are_refused(
    ten: Federation, quick: Quick, tmp_path: Path
) -> None:
    other = quick("federation.secure=true", "federation.clients=10", "local.lr=0.5")
    ten.peers[4] = Federation(other, tmp_path / "other").peers[4]
    with pytest.raises(ClientError, match="1 of 10"):
        ten.prepare()


@pytest.mark.parametrize("clients", [[0, 1, 1, 2, 3], [3, 2, 1, 0], [1, 2, 3, 4, 5]])
def test_repeated_clients_and_lists_without_the_client_are_refused(
    ten: Federation, clients: list[int]
) -> None:
    with pytest.raises((ClientError, ValueError), match=r"twice|not among"):
        prepare(ten.data[0], 1, ten.listed(clients))


def test_one_registered_key_is_not_two_clients(ten: Federation) -> None:
    private = secrets.read(ten.data[4]).private
    made = keys.introduced(keys.simulated(0, 5), ten.data[0].context, 4, private)
    ten.peers[4] = made.to_bytes()
    with pytest.raises(ClientError, match="one key stands for two clients"):
        prepare(ten.data[0], 1, ten.listed())
