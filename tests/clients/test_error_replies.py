"""What travels of an error: never a word of a client's examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients.app import answering_errors, app
from clients.errors import ClientError, Refusal
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from server.flower import from_wire, give_id, new_run, to_wire

TEXT = "the film was awful and my doctor said so"


def answer_raising(error: Exception) -> Message:
    """Return what a node replies when ``error`` comes up, as it arrives at the server."""
    new_run()

    @answering_errors
    def answer(message: Message, context: Context) -> Message:
        raise error

    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    give_id(question)
    context = Context(1, 1, {}, RecordDict(), {})
    return from_wire(to_wire(answer(from_wire(to_wire(question)), context)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"could not convert string to float: '{TEXT}'"),
        KeyError(TEXT),
        UnicodeDecodeError("utf-8", TEXT.encode(), 4, 5, TEXT),
        RuntimeError(TEXT, TEXT),
        type("QuotingError", (Exception,), {"__str__": lambda self: TEXT})(),
    ],
)
def test_an_error_of_others_travels_without_its_text(error: Exception) -> None:
    reply = answer_raising(error)
    assert reply.error.code == 2
    assert reply.error.reason.startswith(f"{type(error).__name__} at test_error_replies.py:")
    assert not any(word in to_wire(reply) for word in (b"film", b"doctor"))


@pytest.mark.parametrize("kind", [ClientError, UserError, Refusal])
def test_our_own_words_travel(kind: type[Exception]) -> None:
    reply = answer_raising(kind("engine.device = 'cuda': torch finds no such device here"))
    assert reply.error.reason == (
        f"{kind.__name__}: engine.device = 'cuda': torch finds no such device here"
    )


def test_long_reasons_are_cut() -> None:
    assert len(answer_raising(ClientError("x" * 5000)).error.reason) == 200
    assert len(answer_raising(Refusal("x" * 5000)).error.reason) == 500


def test_a_file_that_cannot_be_used_is_not_quoted(
    tmp_path: Path, quick: Callable[..., Experiment], caplog: pytest.LogCaptureFixture
) -> None:
    """Our reader names the value at fault; with the wrong column that is a text.

    Who reads this node's own log owns the data, and sees it.
    """
    rows = "".join(f"{TEXT} {number}\t{number}\n" for number in range(4))
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{rows}")
    experiment = quick(
        "task.name=custom",
        f"task.path={tmp_path}",
        "task.train=train.tsv",
        "task.dev=train.tsv",
        "task.kind=score",
        "task.label=text",
    )
    (tmp_path / "partition.json").write_text(json.dumps({"clients": [[0]]}))
    node = {
        "partition-id": 0,
        "num-partitions": 1,
        "partition-file": str(tmp_path / "partition.json"),
        "privacy-folder": str(tmp_path),
        "personal-folder": str(tmp_path),
    }
    context = Context(new_run().run_id, 1, node, RecordDict(), {})
    content = RecordDict(
        {"config": ConfigRecord({"experiment": experiment.to_toml(), "client": -1})}
    )
    question = Message(content, dst_node_id=1, message_type="query.handshake")
    give_id(question)
    reply = app(from_wire(to_wire(question)), context)
    assert reply.error.reason.startswith("UserError at readers.py:")
    assert b"film" not in to_wire(reply)
    said = f"UserError: {tmp_path}/train.tsv row 1: text = '{TEXT[:29]}…', expected a finite number"
    assert caplog.messages == [f"{said} (the server is told: {reply.error.reason})"]
    assert caplog.records[0].run == str(context.run_id)  # type: ignore[attr-defined]


def test_of_errors_of_others_the_text_is_not_even_logged(caplog: pytest.LogCaptureFixture) -> None:
    reply = answer_raising(ValueError(TEXT))
    assert caplog.messages == [reply.error.reason]
