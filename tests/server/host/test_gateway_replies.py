"""Objects of a reply that a node sends again, because the answer got lost, are not refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from gateways import Node
from linked import Linked, linked
from superlinks import Reply

pytestmark = pytest.mark.slow
PUSH = "/v1/fleet/push-object"
LARGE = 300_000  # bytes, which pass through the gateway in pieces


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with linked(tmp_path_factory.mktemp("replies"), 2) as made:
        yield made


def announced(running: Linked, node: Node, size: int) -> Reply:
    """Announce a reply of a node with random content of ``size`` bytes."""
    content = RecordDict({"content": ConfigRecord({"bytes": os.urandom(size)})})
    return running.link.reply(running.link.send(node.node_id), node.node_id, content)


def push(running: Linked, client: httpx.Client, node: Node, reply: Reply, part: str) -> None:
    """Push an object of a reply as Flower's SuperNode does.

    Raises:
        ObjectPushError: it is refused; the SuperNode would now give up the reply.
    """

    def post(request: PushObjectRequest) -> PushObjectResponse:
        answer = client.post(PUSH, content=request.SerializeToString(), headers=node.headers())
        assert answer.status_code == 200, answer.text
        return PushObjectResponse.FromString(answer.content)

    sender = ProtoNode(node_id=node.node_id)
    make_push_object_fn_protobuf(post, sender, running.run, reply.session)(
        part, reply.objects[part]
    )


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("size", [10, LARGE])
def test_object_that_is_sent_again_is_accepted(running: Linked, size: int, http2: bool) -> None:
    node = running.nodes[0]
    reply = announced(running, node, size)
    with running.http(http2) as client:
        for part in reply.objects:
            push(running, client, node, reply, part)
            assert not running.link.store(reply, part)  # as the SuperLink itself would answer
            push(running, client, node, reply, part)
    for part, content in reply.objects.items():
        assert running.link.object(part) == content


def test_object_that_nobody_announced_is_refused(running: Linked) -> None:
    node, other = running.nodes
    reply = announced(running, node, 10)
    (first, *others) = reply.objects
    with running.http() as client:
        push(running, client, node, reply, first)
        with pytest.raises(ObjectPushError):  # it is not part of this node's replies
            push(running, client, other, reply, first)
        unknown = Reply(reply.session, {"0" * 64: b"unknown"})
        with pytest.raises(ObjectPushError):
            push(running, client, node, unknown, "0" * 64)
        for part in others:
            push(running, client, node, reply, part)


def test_garbage_in_place_of_an_object_changes_nothing(running: Linked) -> None:
    node = running.nodes[0]
    reply = announced(running, node, 10)
    (first, *others) = reply.objects
    with running.http() as client:
        push(running, client, node, reply, first)
        for body in (b"", b"\x1a\x40" + b"0" * 10, b"\x1a\x40" + b"f" * 64, os.urandom(500)):
            answer = client.post(PUSH, content=body, headers=node.headers())
            assert answer.status_code >= 400 or answer.content == b"", body
        for part in others:
            push(running, client, node, reply, part)
