"""Bytes are measured on real messages, and totals are sums of measurements."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from messaging import changed, record

from fedpeft.experiment.config import Experiment
from fedpeft.wire.messages import Request, TrainReply
from server.byte_ledger import ByteLedger, total_bytes, vector_bytes
from server.flower import from_wire, give_id, message_bytes, to_wire
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ReadLines = Callable[[Path], list[dict[str, Any]]]


def message_with(vector: np.ndarray | None = None) -> Message:
    data = b"" if vector is None else vector.tobytes()
    return Message(record(Request(vector=data, round=1)), dst_node_id=5, message_type="train")


def test_payload_counts_the_vector_and_message_counts_everything(flower_run: int) -> None:
    ledger, message = ByteLedger(), message_with(vector=np.zeros(100, np.float32))
    ledger.add("train", 3, "down", message)
    assert ledger.entries["train", 3, "down"] == {"payload": 400, "message": len(to_wire(message))}


def test_an_error_reply_has_a_size_but_no_payload(flower_run: int) -> None:
    ledger = ByteLedger()
    reply = Message(Error(2, "why"), reply_to=message_with(vector=np.zeros(3)))
    ledger.add("train", 0, "up", reply)
    assert ledger.entries["train", 0, "up"] == {"payload": 0, "message": len(to_wire(reply))}


def test_a_payload_that_is_not_bytes_counts_as_nothing(flower_run: int) -> None:
    message = changed(message_with(np.zeros(1)), v="text")
    assert vector_bytes(message) == 0


def test_two_messages_of_one_client_add_up(flower_run: int) -> None:
    ledger, message = ByteLedger(), message_with(vector=np.zeros(2, np.float32))
    for _ in range(2):
        ledger.add("train", 0, "up", message)
    assert ledger.entries["train", 0, "up"] == {"payload": 16, "message": 2 * len(to_wire(message))}


def test_kinds_and_directions_are_kept_apart(flower_run: int) -> None:
    ledger = ByteLedger()
    for numbers, (kind, direction) in enumerate(
        [(kind, way) for kind in ("train", "evaluate", "handshake") for way in ("down", "up")], 1
    ):
        ledger.add(kind, 0, direction, message_with(vector=np.zeros(numbers, np.float32)))
    found = ledger.round_bytes()
    assert [found[side]["payload"] for side in ("down", "up")] == [4, 8]
    assert [found["evaluate"][side]["payload"] for side in ("down", "up")] == [12, 16]
    assert [found["handshake"][side]["payload"] for side in ("down", "up")] == [20, 24]


def test_repeated_handshakes_add_up_and_refused_nodes_have_negative_clients(
    flower_run: int,
) -> None:
    ledger, message = ByteLedger(), message_with()
    for _ in range(2):
        by_node = ByteLedger()
        for node in (1005, 1001, 1003):
            by_node.add("handshake", node, "down", message)
        ledger.add_handshakes(by_node, {1003: 7})
    size = {"payload": 0, "message": 2 * len(to_wire(message))}
    line = {"round": 4, "kind": "handshake", "down": size}
    assert ledger.lines(4) == [{**line, "client": client} for client in (-2, -1, 7)]
    assert ledger.round_bytes()["handshake"]["down"]["message"] == 3 * size["message"]


@pytest.mark.parametrize(("codec", "width"), [("float16", 2), ("float32", 4), ("float64", 8)])
def test_the_payload_of_a_run_is_the_vector_in_its_codec(
    quick: Quick, federate: Federate, read_lines: ReadLines, codec: str, width: int
) -> None:
    folder = federate(quick(f"wire.up={codec}", f"wire.down={codec}", "federation.rounds=1"))
    size, head = 16 + 2 * 32 + 2, 2 * 32 + 2  # d + head
    for line in read_lines(folder.path / "bytes.jsonl"):
        expected = size * width if line["kind"] == "train" else 0
        assert line["down"]["payload"] == line["up"]["payload"] == expected
    result = read_result(folder)
    share = result["bytes"]["per_client_round_up"]
    assert (share["payload"], share["head"]) == (size * width, head * width)
    assert share["method"] == 16 * width


def test_message_bytes_are_those_that_the_client_really_sent(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    sent: list[int] = []

    def weigh(reply: Message) -> Message:
        give_id(reply)
        sent.append(len(to_wire(reply)))
        return reply

    folder = federate(quick("federation.rounds=3"), weigh)
    lines = read_lines(folder.path / "bytes.jsonl")
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["up"]["message"] for line in trained] == sent
    assert len(sent) == 9


def test_bytes_of_rounds_and_result_are_sums_over_bytes_jsonl(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    folder = federate(quick("federation.evaluation=clients"))
    lines = read_lines(folder.path / "bytes.jsonl")
    for line in folder.rounds():
        of_round = [entry for entry in lines if entry["round"] == line["round"]]
        assert_sums(line["bytes"], of_round)
    result = read_result(folder)
    assert_sums(result["bytes"], lines)
    assert all(result["bytes"][kind]["up"]["message"] > 0 for kind in ("evaluate", "handshake"))
    assert result["bytes"]["evaluate"]["up"]["payload"] == 2 * 3 * 5 * 8  # counts of two classes
    ups = [line["up"]["message"] for line in lines if line["kind"] == "train"]
    assert result["bytes"]["per_client_round_up"]["message"] == round(sum(ups) / len(ups))


def assert_sums(found: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Check a tree of bytes against the lines of bytes.jsonl it sums."""
    for kind in ("train", "evaluate", "handshake"):
        tree = found if kind == "train" else found[kind]
        for side in ("down", "up"):
            for measure in ("payload", "message"):
                expected = [entry[side][measure] for entry in entries if entry["kind"] == kind]
                assert tree[side][measure] == sum(expected), (kind, side, measure)


def test_each_client_shakes_hands_once_in_a_run(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    folder = federate(quick())
    lines = read_lines(folder.path / "bytes.jsonl")
    assert [(line["round"], line["client"]) for line in lines if line["kind"] == "handshake"] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_bytes_on_the_wire_are_counted_apart_and_null_in_a_simulation() -> None:
    ledger = ByteLedger()
    assert ledger.round_bytes()["wire"] is None and ledger.lines(1) == []
    ledger.wire = {0: {"down": 30, "up": 7}, 1: {"down": 2, "up": 1}}
    total = ledger.round_bytes()
    assert total["wire"] == {"down": 32, "up": 8}
    assert total["up"] == total["down"] == {"payload": 0, "message": 0}
    assert ledger.lines(3) == [
        {"round": 3, "client": 0, "kind": "wire", "down": 30, "up": 7},
        {"round": 3, "client": 1, "kind": "wire", "down": 2, "up": 1},
    ]


def test_total_of_bytes_on_the_wire_leaves_out_rounds_without_them() -> None:
    measured = ByteLedger(wire={0: {"down": 30, "up": 7}}).round_bytes()
    absent = ByteLedger().round_bytes()
    assert total_bytes([absent])["wire"] is None
    assert total_bytes([measured, absent, measured])["wire"] == {"down": 60, "up": 14}
    del absent["wire"]  # type: ignore[misc] # written by fedpeft 0.1
    assert total_bytes([measured, absent, measured])["wire"] == {"down": 60, "up": 14}


def test_total_bytes_of_no_rounds_is_nothing() -> None:
    assert total_bytes([])["up"] == {"payload": 0, "message": 0}


@pytest.mark.long
def test_slash_1024_on_width_384_sends_7176_bytes(quick: Quick, federate: Federate) -> None:
    """1,024 numbers of z and a head of 2 x 384 + 2, four bytes each."""
    folder = federate(
        quick(
            "backbone=minilm",
            "method.d=1024",
            "federation.clients=2",
            "federation.rounds=1",
            "task.train_limit=16",
            "task.eval_limit=8",
        )
    )
    result = read_result(folder)
    assert (result["vector_size"], result["head_size"]) == (1794, 770)
    share = result["bytes"]["per_client_round_up"]
    assert share["payload"] == 7176
    assert share["method"] == 4096
    assert share["head"] == 3080
    assert 7176 < share["message"] < 8000
    assert result["bytes"]["up"]["payload"] == 2 * 7176


def read_result(folder: RunFolder) -> dict[str, Any]:
    return json.loads((folder.path / "result.json").read_text())


@pytest.mark.parametrize("size", [225, 897, 7176])
def test_a_message_is_three_flower_objects_with_little_around_the_payload(
    flower_run: int, size: int
) -> None:
    """Flower's metadata, mostly two SHA-256 in hexadecimal, takes 116 bytes down and 182 up."""
    asked = record(Request(vector=bytes(size), round=3, label=bytes(8)))
    request = Message(asked, dst_node_id=(1 << 63) + 5, message_type="train")
    give_id(request)
    reply = Message(
        record(TrainReply(vector=bytes(size), loss=0.5)), reply_to=from_wire(to_wire(request))
    )
    give_id(reply)
    for message, content, framing in ((request, 47, 168), (reply, 37, 225)):
        assert message_to_proto(message).content.ByteSize() - size <= content
        assert message_bytes(message) - size <= framing
        assert len(get_all_nested_objects(message)) == 3
