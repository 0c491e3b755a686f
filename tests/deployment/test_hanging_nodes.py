"""Real nodes that take a train message and never reply: the replies of the others count."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import disturbed
import pytest
from cryptography.hazmat.primitives import serialization
from disturbed import gates
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute
from gateways import Client, Node

from clients.status import describe_node
from server.flower import new_run
from server.host.folder import ServerFolder
from simulations.loopback import Deployment, until

pytestmark = pytest.mark.long
TIMEOUT = 60  # seconds; the other node needs a few of them
HANGS = 70  # seconds; more than Flower's SuperNode waits for its server
FLOWERS = 180  # seconds that Flower waits for the objects of a reply
SETTINGS = [*disturbed.SETTINGS, f"federation.timeout={TIMEOUT}", "federation.min_success=1"]
SETTINGS += ["local.steps=5"]


def silent(client: int) -> dict[str, object]:
    """Return the entry of a round's record on a client that did not reply."""
    name = ("north", "south")[client]
    return {"client": client, "name": name, "reason": f"no reply within {TIMEOUT} s"}


def test_a_node_that_hangs_misses_the_round_and_takes_part_once_it_answers(
    deployed: Deployment,
) -> None:
    """How rarely it is asked if it goes on hanging: tests/server/test_silence.py."""
    with gates(deployed, "hangs", "north") as gate:
        deployed.submit("hangs", [*SETTINGS, "federation.rounds=3"])
        gate.begun(0, "north")
        gate.next("north")
        gate.begun(1, "north")
        until(lambda: deployed.rounds("hangs"), "the first round")
        status = describe_node(deployed.node("north"))
    deployed.finish("hangs")
    first, *_, last = deployed.rounds("hangs")
    assert (first["clients"], first["failed"]) == (1, [silent(0)])
    assert first["seconds"] >= TIMEOUT
    assert (last["clients"], last["failed"]) == (2, [])
    # The node's operator sees that the last message it answered is an old one.
    assert status["last_message"]["message"].startswith("train, round 0: done")


def waiting_message(database: Path, node_id: int) -> Message:
    """Return the last train message to a node, without its content, from the SuperLink's tables."""
    signed = node_id - 2**64 if node_id >= 2**63 else node_id
    query = (
        "SELECT message_id, run_id FROM message_ins WHERE dst_node_id = ? "
        "AND message_type = 'train' ORDER BY created_at DESC"
    )
    connection = sqlite3.connect(database)
    message_id, run_id = connection.execute(query, (signed,)).fetchone()
    connection.close()
    new_run()  # without a run, Flower makes no messages
    message = Message(RecordDict(), dst_node_id=node_id, message_type="train", ttl=600)
    values = {"_message_id": message_id, "_run_id": run_id % 2**64, "_src_node_id": 1}
    message.metadata.__dict__.update(values)
    return message


def announce_reply(deployed: Deployment, name: str) -> PushMessagesResponse:
    """Announce a reply to a node's train message with the node's key; never send its objects."""
    entries = json.loads((deployed.state / "nodes.json").read_text())
    node_id = next(entry["node_id"] for entry in entries if entry["name"] == name)
    asked = waiting_message(deployed.state / "superlink.db", node_id)
    reply = Message(RecordDict({"m": ConfigRecord({"l": 0.5})}), reply_to=asked)
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
    sent = message_to_proto(reply)
    sent.content.Clear()  # it travels in objects
    sent.content.SetInParent()
    request = PushMessagesRequest(
        node=ProtoNode(node_id=node_id), messages_list=[sent], message_object_trees=[tree]
    )
    private = serialization.load_ssh_private_key((deployed.keys / name).read_bytes(), None)
    headers = Node(private, node_id).headers()  # type: ignore[arg-type]
    with Client(ServerFolder.read(deployed.state)).http() as client:
        content = request.SerializeToString()
        answer = client.post("/v1/fleet/push-messages", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    return PushMessagesResponse.FromString(answer.content)


def test_a_reply_that_is_announced_and_never_sent_costs_no_more_than_the_timeout(
    deployed: Deployment,
) -> None:
    """Flower itself waits much longer for its objects, and so would the replies of others."""
    with gates(deployed, "announced", "south") as gate:
        deployed.submit("announced", [*SETTINGS, "federation.rounds=1"])
        gate.begun(0, "south")
        gate.next("south")
        gate.begun(1, "south")
        assert len(announce_reply(deployed, "south").objects_to_push) == 3
        deployed.finish("announced")
    [line] = deployed.rounds("announced")
    assert (line["clients"], line["failed"]) == (1, [silent(1)])
    assert line["seconds"] < FLOWERS  # two minutes are left for a slow machine


def test_a_node_whose_tunnel_hung_for_more_than_a_minute_takes_part_in_the_next_run(
    deployed: Deployment,
) -> None:
    """Flower's SuperNode gives up for ever after a minute; its process lives on."""
    [tunnel] = deployed.pids("north", "clients.tunnel")
    os.kill(tunnel, signal.SIGSTOP)
    try:
        time.sleep(HANGS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the supervisor may have replaced it
            os.kill(tunnel, signal.SIGCONT)
    needed = [*disturbed.SETTINGS, "federation.min_success=2", "federation.rounds=2"]
    deployed.run("after-hang", [*needed, "local.steps=5"])
    assert [line["clients"] for line in deployed.rounds("after-hang")] == [2, 2]
