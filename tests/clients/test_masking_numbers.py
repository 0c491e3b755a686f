"""Attacks by which one node would be two clients of a round: its holders would reveal both secrets.

A colluder signs the victim's keys of the run as its own, and the server lets the victim prepare the
round under both numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as forms
from flwr.app import Context, Message, RecordDict
from messaging import arriving, handshake_request
from sums import Federation

from clients.app import app
from clients.data.client_data import STATE
from clients.errors import ClientError
from clients.folder import NodeFolder, NodeSettings
from clients.secure import masking, preparation, secrets
from clients.secure.masking import Masking
from fedpeft.experiment.config import Experiment
from fedpeft.secure import keys
from fedpeft.secure.keys import Peer
from fedpeft.wire.messages import RECORD, HandshakeReply, from_fields
from server.flower import new_run

VICTIM, COLLUDER = 3, 5
RUN = "0123456789abcdef"


@pytest.fixture
def ten(quick: Callable[..., Experiment], tmp_path: Path) -> Federation:
    return Federation(quick("federation.secure=true", "federation.clients=10"), tmp_path)


def signed_by_the_colluder(ten: Federation) -> Peer:
    """The victim's keys of the run, as those of the colluder."""
    victim, context = Peer.from_bytes(ten.peers[VICTIM]), ten.data[VICTIM].context
    registered = keys.simulated(ten.experiment.seed, COLLUDER)
    made = keys.introduced(registered, context, COLLUDER, secrets.read(ten.data[VICTIM]).private)
    assert (made.key, made.verifier) == (victim.key, victim.verifier)
    return made


def test_a_client_has_one_number_in_a_run(ten: Federation) -> None:
    ten.prepare()
    renumbered = replace(ten.data[VICTIM], client=COLLUDER)
    for asked in (
        lambda: preparation.introduce(renumbered),
        lambda: preparation.prepare(renumbered, 1, ten.listed()),
        lambda: masking.reveal(renumbered, 1, b""),
    ):
        with pytest.raises(ClientError, match="client 5: this client is 3 in this run"):
            asked()


def test_keys_of_the_run_are_of_one_client(ten: Federation) -> None:
    ten.peers[COLLUDER] = signed_by_the_colluder(ten).to_bytes()
    for client in (0, VICTIM):
        with pytest.raises(ClientError, match="one key stands for two clients"):
            preparation.prepare(ten.data[client], 1, ten.listed())


@pytest.mark.parametrize("part", ["name", "verifier"])
def test_a_client_is_listed_with_all_of_its_own_keys(ten: Federation, part: str) -> None:
    listed = {client: Peer.from_bytes(peer) for client, peer in ten.peers.items()}
    other = listed.pop(COLLUDER)
    listed[VICTIM] = replace(listed[VICTIM], **{part: getattr(other, part)})
    text = b"".join(listed[client].to_bytes() for client in sorted(listed))
    with pytest.raises(ClientError, match="this client is not among the clients"):
        preparation.prepare(ten.data[VICTIM], 1, text)


def test_other_holders_than_a_client_chose_for_itself_are_refused(ten: Federation) -> None:
    prepared = ten.prepare()
    listed = [made.member for made in prepared.values()]
    listed[0] = replace(listed[0], holder_seed=bytes(16))
    text, sealed = b"".join(each.to_bytes() for each in listed), ten.sealed(prepared, 0)
    with pytest.raises(ClientError, match="this client is not among the members"):
        Masking(ten.data[0], 1, text, sealed, (b"vector", 1.0, 1.0))


def test_a_second_handshake_does_not_give_a_node_another_number(
    ten: Federation, tmp_path: Path
) -> None:
    """Through the handlers of a deployed node, which takes the number that it is given."""
    seed, clients = ten.experiment.seed, ten.clients
    key, roster, state = tmp_path / "key", tmp_path / "roster", tmp_path / "node"
    how = forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()
    key.write_bytes(keys.simulated(seed, VICTIM).private_bytes(*how))
    roster.write_bytes(b"\n".join(keys.public_line(keys.simulated(seed, c)) for c in clients))
    NodeFolder(state).prepare()
    NodeSettings("", examples=10, key=str(key), roster=str(roster), colluders=1).write(state)
    new_run()
    context = Context(1, 99, {STATE: str(state)}, RecordDict(), {})

    def handshake(client: int) -> Message:
        request = replace(handshake_request(ten.experiment), client=client, run=RUN)
        return app(arriving("query.handshake", request, context.node_id), context)

    first = from_fields(HandshakeReply, handshake(VICTIM).content[RECORD])
    refused = handshake(COLLUDER)
    assert "client 5: this client is 3 in this run" in refused.error.reason
    again = from_fields(HandshakeReply, handshake(VICTIM).content[RECORD])
    assert first.peer == again.peer and Peer.from_bytes(first.peer).client == VICTIM
