"""A node writes down what leaves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from workers import handshake, node_context, state_folder, task_vector

from clients import relay, traffic
from clients.flower import to_wire
from clients.folder import NodeFolder
from fedpeft.experiment.config import Experiment
from fedpeft.files import read_object
from fedpeft.runtime import runtime_of

Quick = Callable[..., Experiment]


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    """A node in a run, without a worker: the relay answers."""
    made = NodeFolder(state_folder(tmp_path / "state"))
    node_context(made.path)  # messages can be made only in a run
    return made


def asked(folder: NodeFolder, *messages: Message) -> list[Message]:
    """Return the node's replies."""
    context = node_context(folder.path)
    return [relay.app(message, context) for message in messages]


def test_each_message_is_written_down(folder: NodeFolder, quick: Quick) -> None:
    experiment = quick("federation.evaluation=clients")
    start = runtime_of(experiment).parameters.initial(0)
    messages = [
        handshake(experiment),
        task_vector("train", experiment, start, 2),
        task_vector("evaluate", experiment, start),
    ]
    context = node_context(folder.path)
    context.run_config["out"] = "first"
    replies = [relay.app(message, context) for message in messages]
    lines = [*traffic.recorded(folder)]
    assert [line["name"] for line in lines] == ["first"] * 3
    assert [(line["kind"], line["round"]) for line in lines] == [
        ("query.handshake", None),
        ("train", 2),
        ("evaluate", 1),
    ]
    for message, reply, line in zip(messages, replies, lines, strict=True):
        assert line["down"] == len(to_wire(message)) and line["up"] == len(to_wire(reply))
        assert line["run"] == str(message.metadata.run_id) and line["seconds"] >= 0
        age = datetime.now(UTC) - datetime.fromisoformat(line["time"])
        assert timedelta(0) <= age < timedelta(minutes=5)
    first, second, third = lines
    assert first["numbers"] == {"client": 0, "examples": 20}
    assert {"projection", "layout", "backbone"} <= first["content"].keys()
    assert second["content"] == {"vector": 4 * len(start)} and second["payload"] == 4 * len(start)
    assert second["numbers"].keys() == {"loss"} and third["numbers"].keys() == {"loss_sum"}
    assert first["payload"] == 0
    about = read_object(folder.experiments / f"{second['label']}.json")
    assert Experiment.load(about["toml"]).digest == experiment.digest
    assert folder.messages.stat().st_mode & 0o777 == 0o600


def test_an_error_that_left_is_written_down(folder: NodeFolder, quick: Quick) -> None:
    experiment = quick("seed=77")
    [reply] = asked(folder, task_vector("train", experiment, np.zeros(3, "float32")))
    [line] = traffic.recorded(folder)
    assert line["error"] == reply.error.reason and "no handshake" in line["error"]
    assert line["payload"] == 0 and "content" not in line


def test_the_files_are_bounded(
    folder: NodeFolder, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "LARGEST", 2000)
    message = handshake("seed = [")
    [reply] = asked(folder, message)
    for _ in range(40):
        traffic.record(folder, message, reply, 1, 2, 0.1)
    sizes = [path.stat().st_size for path in (folder.messages, folder.old_messages)]
    assert all(size < 2600 for size in sizes)
    assert sum(1 for _ in traffic.recorded(folder)) > 5
    assert {path.name for path in folder.path.glob("messages*json*")} == {
        "messages.jsonl",
        "messages.old.jsonl",
    }


def test_a_record_that_cannot_be_written_costs_no_reply(folder: NodeFolder, quick: Quick) -> None:
    folder.messages.mkdir()
    [reply] = asked(folder, handshake(quick()))
    assert reply.has_content()
    assert [*traffic.recorded(folder)] == []


def test_damaged_lines_are_skipped(folder: NodeFolder) -> None:
    folder.messages.write_text('{"kind": "train"}\n[1]\n{"to\n' + json.dumps({"kind": "x"}) + "\n")
    assert [line["kind"] for line in traffic.recorded(folder)] == ["train", "x"]
