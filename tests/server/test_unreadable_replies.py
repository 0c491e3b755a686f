"""A reply that Flower's grid cannot parse never ends a run, and loses no other reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

from server.flower import give_id, new_run, tolerant

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
    """What stands for Flower's client of the Runtime API: it has some pushed replies."""

    def __init__(self, pushed: Iterable[tuple[ObjectTree, Objects]]) -> None:
        self.pushed = [*pushed]

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        trees = [tree for tree, _ in self.pushed]
        messages = [message_to_proto(reply()) for _ in trees]
        for message, tree in zip(messages, trees, strict=True):
            message.metadata.message_id = tree.object_id
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request: Any) -> PullObjectResponse:
        content = next(c[request.object_id] for _, c in self.pushed if request.object_id in c)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None: ...


def pulled(pushed: Iterable[tuple[ObjectTree, Objects]]) -> list[Message]:
    """Pull replies with Flower's grid."""
    grid = object.__new__(http_grid.HttpGrid)
    grid.__dict__.update(_run=new_run(), _client=Client(pushed), node=Node(node_id=1))
    return [*grid.pull_messages(["1"])]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_reply_that_cannot_be_read_is_skipped_and_the_others_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    new_run()
    patched = tolerant(http_grid.inflate_object_from_contents)
    monkeypatch.setattr(http_grid, "inflate_object_from_contents", patched)
    first, bad, last = pulled([objects_of(reply()), UNREADABLE[name](), objects_of(reply())])
    assert first.content["m"]["l"] == last.content["m"]["l"] == 0.5
    assert bad.has_error() and bad.metadata.reply_to_message_id == ""
    [warning] = [record.getMessage() for record in caplog.records if record.name == "server.flower"]
    assert warning.startswith("skipped a reply that cannot be read (")


@pytest.mark.parametrize(
    "name", sorted(set(UNREADABLE) - {"other content", "no message", "an array"})
)
def test_flower_itself_ends_the_run(name: str) -> None:
    """The reason for ``tolerant``; when this fails, Flower may have changed."""
    new_run()
    with pytest.raises(Exception, match=r".*"):
        pulled([UNREADABLE[name]()])


def test_honest_replies_and_errors_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    new_run()
    patched = tolerant(http_grid.inflate_object_from_contents)
    monkeypatch.setattr(http_grid, "inflate_object_from_contents", patched)
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    give_id(asked)
    [failed] = pulled([objects_of(Message(Error(2, "why"), reply_to=asked))])
    assert (failed.error.code, failed.error.reason) == (2, "why")
    assert failed.metadata.reply_to_message_id == asked.metadata.message_id
