"""Replies that a node sends again because an answer got lost arrive whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from gateways import Node
from linked import Linked, linked
from superlinks import Announced

pytestmark = pytest.mark.slow
ANNOUNCE, PUSH = "/v1/fleet/push-messages", "/v1/fleet/push-object"
LARGE = 300_000  # bytes, which pass through the gateway in pieces


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with linked(tmp_path_factory.mktemp("replies"), 1) as made:
        yield made


@pytest.fixture
def node(running: Linked) -> Node:
    return running.nodes[0]


@pytest.fixture
def client(running: Linked) -> Iterator[httpx.Client]:
    with running.http() as made:
        yield made


@pytest.fixture
def reply(running: Linked, node: Node, request: pytest.FixtureRequest) -> Message:
    """A reply of the node to a new message, with random bytes, few or as many as asked."""
    content = random.Random(request.node.name).randbytes(getattr(request, "param", 10))
    record = RecordDict({"content": ConfigRecord({"bytes": content})})
    return running.link.reply(running.link.send(node.node_id), node.node_id, record)


def announce(running: Linked, client: httpx.Client, node: Node, reply: Message) -> Announced:
    """Announce a reply as Flower's SuperNode does."""
    with no_object_id_recompute():
        parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
        request = PushMessagesRequest(
            node=ProtoNode(node_id=node.node_id),
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[tree],
            clientapp_runtime_list=[1.0],
        )
    answer = client.post(ANNOUNCE, content=request.SerializeToString(), headers=node.headers())
    assert answer.status_code == 200, answer.text
    response = PushMessagesResponse.FromString(answer.content)
    needed = {number: parts[number].deflate() for number in response.objects_to_push}
    return Announced(response.session_id, needed)


def push(running: Linked, client: httpx.Client, node: Node, reply: Announced, part: str) -> None:
    """Push an object of a reply as Flower's SuperNode does.

    Raises:
        ObjectPushError: it is refused; the SuperNode would now give up the reply.
    """

    def post(request: PushObjectRequest) -> PushObjectResponse:
        answer = client.post(PUSH, content=request.SerializeToString(), headers=node.headers())
        answer.raise_for_status()
        return PushObjectResponse.FromString(answer.content)

    sender = ProtoNode(node_id=node.node_id)
    make_push_object_fn_protobuf(post, sender, running.run, reply.session)(
        part, reply.objects[part]
    )


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("reply", [10, LARGE], indirect=True)
def test_repeated_object_is_accepted(
    running: Linked, client: httpx.Client, node: Node, reply: Message, asked: bool
) -> None:
    announced = announce(running, client, node, reply)
    if asked:  # by the ServerApp: the SuperLink forgets whose objects these are
        assert running.link.ask(reply.metadata.reply_to_message_id)
    for part, content in announced.objects.items():
        push(running, client, node, announced, part)
        assert not running.link.store(announced, part)  # as the SuperLink itself would answer
        push(running, client, node, announced, part)
        assert running.link.object(part) == content


@pytest.mark.parametrize("asked", [False, True])
def test_repeated_announcement_names_the_missing_objects(
    running: Linked, client: httpx.Client, node: Node, reply: Message, asked: bool
) -> None:
    first = announce(running, client, node, reply)
    if asked:
        assert running.link.ask(reply.metadata.reply_to_message_id)
        assert running.link.announce(reply).objects == {}  # as the SuperLink itself would answer
    again = announce(running, client, node, reply)
    assert again.objects == first.objects and len(again.objects) > 1
    for part in first.objects:
        push(running, client, node, again, part)
        again = announce(running, client, node, reply)
        assert part not in again.objects
    assert again.objects == {}


def test_unknown_objects_and_garbage_are_refused(
    running: Linked, client: httpx.Client, node: Node, reply: Message
) -> None:
    announced = announce(running, client, node, reply)
    with pytest.raises(ObjectPushError):
        unknown = Announced(announced.session, {"0" * 64: b"unknown"})
        push(running, client, node, unknown, "0" * 64)
    long = random.Random(0).randbytes(500)
    for body in (b"", b"\x1a\x40" + b"0" * 10, b"\x1a\x40" + b"f" * 64, long):
        for path in (ANNOUNCE, PUSH):
            answer = client.post(path, content=body, headers=node.headers())
            assert answer.status_code >= 400 or answer.content == b"", (path, body)
    for part in announced.objects:
        push(running, client, node, announced, part)
