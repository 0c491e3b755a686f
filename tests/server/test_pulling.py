"""No site's reply ends a run, delays the replies of others, or answers for another site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import http_grid

from server.flower import Pulling, give_id, new_run

Objects = dict[str, bytes]


def objects_of(thing: Any) -> tuple[ObjectTree, Objects]:
    """Return what a node pushes: the tree of objects and their contents."""
    contents = {name: each.deflate() for name, each in get_all_nested_objects(thing).items()}
    return get_object_tree(thing), contents


def reply() -> Message:
    """Return an honest reply."""
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    give_id(asked)
    return Message(RecordDict({"m": ConfigRecord({"l": 0.5})}), reply_to=asked)


def replaced(change: Callable[[bytes], bytes]) -> Callable[[], tuple[ObjectTree, Objects]]:
    """Return a maker of a reply whose root object's content is changed."""

    def make() -> tuple[ObjectTree, Objects]:
        tree, contents = objects_of(reply())
        contents[tree.object_id] = change(contents[tree.object_id])
        return tree, contents

    return make


def with_other_content() -> tuple[ObjectTree, Objects]:
    """Return a message whose content is an array and no record."""
    arrays = ArrayRecord({"a": Array(np.zeros(2))})
    tree, contents = objects_of(arrays)
    honest = reply()
    honest.__dict__["_content"] = arrays
    root = honest.deflate()
    return ObjectTree(object_id="f" * 64, children=[tree]), {**contents, "f" * 64: root}


def without_children() -> tuple[ObjectTree, Objects]:
    tree, contents = objects_of(reply())
    return ObjectTree(object_id=tree.object_id), contents


UNREADABLE = {
    "garbage": replaced(lambda content: content[: content.index(b"\x00") + 1] + b"\xff" * 40),
    "no head": replaced(lambda content: b"\xff\xfe"),
    "unknown type": replaced(lambda content: content.replace(b"Message", b"Massage", 1)),
    "no message": lambda: objects_of(RecordDict()),
    "an array": lambda: objects_of(ArrayRecord({"a": Array(np.zeros(2))})),
    "other content": with_other_content,
    "missing objects": without_children,
}


class Client:
    """What stands for Flower's client of the Runtime API: it has some announced replies.

    Attributes:
        announced: by the id of the message it replies to; each is handed out once.
        missing: ids of objects that have not arrived.
        lost: ids of objects that will not arrive.
    """

    def __init__(self, announced: dict[str, tuple[ObjectTree, Objects]]) -> None:
        self.announced, self.known = announced, dict[str, bytes]()
        self.missing, self.lost = set[str](), set[str]()
        self.confirmed, self.handed_out = list[str](), set[str]()

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        assert not self.handed_out & {*request.message_ids}, "Flower would answer with errors"
        asked = {to: self.announced[to] for to in request.message_ids if to in self.announced}
        self.handed_out |= {*asked}
        messages = []
        for to, (tree, contents) in asked.items():
            self.known |= contents
            messages.append(message_to_proto(reply()))
            messages[-1].metadata.message_id = tree.object_id
            messages[-1].metadata.reply_to_message_id = to
        trees = [tree for tree, _ in asked.values()]
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request: Any) -> PullObjectResponse:
        name = request.object_id
        if name in self.lost:
            return PullObjectResponse(object_found=False)
        if name in self.missing:
            return PullObjectResponse(object_found=True, object_available=False)
        content = self.known[name]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def grid_of(announced: dict[str, tuple[ObjectTree, Objects]]) -> tuple[http_grid.HttpGrid, Client]:
    """Return Flower's grid, connected to a client with announced replies."""
    grid, client = object.__new__(http_grid.HttpGrid), Client(announced)
    grid.__dict__.update(_run=new_run(), _client=client, node=Node(node_id=1))
    return grid, client


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_reply_that_cannot_be_read_fails_alone(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    new_run()
    pushed = {"1": objects_of(reply()), "2": UNREADABLE[name](), "3": objects_of(reply())}
    grid, client = grid_of(pushed)
    first, bad, last = Pulling().pull(grid, ["1", "2", "3"])
    assert first.content["m"]["l"] == last.content["m"]["l"] == 0.5
    assert bad.metadata.reply_to_message_id == "2"
    assert bad.error.reason == "the reply cannot be read"
    assert len(client.confirmed) == 3
    [warning] = [record.getMessage() for record in caplog.records if record.name == "server.flower"]
    assert warning.startswith("a reply cannot be read (")


@pytest.mark.parametrize(
    "name", sorted(set(UNREADABLE) - {"other content", "no message", "an array"})
)
def test_flower_itself_ends_the_run(name: str) -> None:
    """A reason for ``Pulling``; when this fails, Flower may have changed."""
    new_run()
    grid, _ = grid_of({"1": UNREADABLE[name]()})
    with pytest.raises(Exception, match=r".*"):
        [*grid.pull_messages(["1"])]


def test_a_site_that_announces_a_reply_and_sends_nothing_delays_nobody() -> None:
    new_run()
    stalled = objects_of(reply())
    grid, client = grid_of({"1": stalled, "2": objects_of(reply())})
    pulling = Pulling()
    client.missing = {[*stalled[1]][-1]}
    [other] = pulling.pull(grid, ["1", "2"])
    assert other.metadata.reply_to_message_id == "2"
    assert pulling.pull(grid, ["1"]) == []
    client.missing = set()  # its line was only slow
    [late] = pulling.pull(grid, ["1"])
    assert late.metadata.reply_to_message_id == "1"
    assert late.content["m"]["l"] == 0.5


def test_objects_that_are_lost_fail_their_reply() -> None:
    new_run()
    lost = objects_of(reply())
    grid, client = grid_of({"1": lost})
    client.lost = {*lost[1]}
    [failed] = Pulling().pull(grid, ["1"])
    assert failed.error.reason == "the reply is incomplete"
    assert failed.metadata.reply_to_message_id == "1"
    assert client.confirmed == []


def test_a_reply_nobody_awaits_any_more_is_forgotten() -> None:
    new_run()
    late = objects_of(reply())
    grid, client = grid_of({"1": late})
    pulling = Pulling()
    client.missing = {*late[1]}
    assert pulling.pull(grid, ["1"]) == []
    assert pulling.pull(grid, ["2"]) == []
    assert pulling._announced == {}


def test_a_site_cannot_answer_for_another() -> None:
    """The objects of a reply name a message; only what the SuperLink has checked counts."""
    new_run()
    forged = objects_of(reply())  # its content names another message than "1"
    grid, _ = grid_of({"1": forged})
    [message] = Pulling().pull(grid, ["1"])
    assert message.metadata.reply_to_message_id == "1"


def test_errors_of_sites_arrive_as_they_are() -> None:
    new_run()
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    give_id(asked)
    failed = Message(Error(2, "why"), reply_to=asked)
    grid, _ = grid_of({asked.metadata.message_id: objects_of(failed)})
    [error] = Pulling().pull(grid, [asked.metadata.message_id])
    assert (error.error.code, error.error.reason) == (2, "why")
    assert error.metadata.reply_to_message_id == asked.metadata.message_id
