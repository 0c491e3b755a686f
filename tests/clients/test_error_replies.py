"""Error replies of a client never contain its examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from messaging import arriving, handshake_request

from clients.app import answering_errors, app
from clients.errors import SENDABLE, ClientError, DataError, Refusal, reading
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from server.flower import from_wire, give_id, new_run, to_wire

TEXT = "the film was awful and my doctor said so"


def answer_raising(error: Exception) -> Message:
    """Return a node's reply after ``error`` was raised, as it arrives at the server."""
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
def test_other_errors_are_sent_without_their_text(error: Exception) -> None:
    reply = answer_raising(error)
    assert reply.error.code == 2
    assert reply.error.reason.startswith(f"{type(error).__name__} at test_error_replies.py:")
    assert not any(word in to_wire(reply) for word in (b"film", b"doctor"))


@pytest.mark.parametrize("kind", SENDABLE)
def test_errors_that_hold_no_data_are_sent_with_their_text(kind: type[Exception]) -> None:
    reply = answer_raising(kind("engine.device = 'cuda': torch finds no such device here"))
    assert reply.error.reason == (
        f"{kind.__name__}: engine.device = 'cuda': torch finds no such device here"
    )


def test_other_errors_of_fedpeft_are_logged_with_their_text_and_sent_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply = answer_raising(UserError(TEXT))
    assert reply.error.reason.startswith("UserError at test_error_replies.py:")
    assert caplog.messages == [f"UserError: {TEXT} (sent to the server: {reply.error.reason})"]


def test_long_error_reasons_are_cut() -> None:
    assert len(answer_raising(ClientError("x" * 5000)).error.reason) == 200
    assert len(answer_raising(Refusal("x" * 5000)).error.reason) == 500


def test_an_error_in_reading_a_file_is_sent_without_its_text(
    tmp_path: Path, quick: Callable[..., Experiment], caplog: pytest.LogCaptureFixture
) -> None:
    """The reader's error quotes the invalid value, here a text as the column is wrong.

    It is in the log of this node, whose operator owns the data.
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
    node = {
        "partition-id": 0,
        "num-partitions": 1,
        "privacy-folder": str(tmp_path),
        "kept-folder": str(tmp_path),
    }
    context = Context(new_run().run_id, 1, node, RecordDict(), {})
    reply = app(arriving("query.handshake", handshake_request(experiment), 1), context)
    assert reply.error.reason.startswith("UserError at readers.py:")
    assert b"film" not in to_wire(reply)
    logged = (
        f"UserError: {tmp_path}/train.tsv row 1: text = '{TEXT[:29]}…', expected a finite number"
    )
    assert caplog.messages == [f"{logged} (sent to the server: {reply.error.reason})"]
    assert caplog.records[0].run == str(context.run_id)  # type: ignore[attr-defined]


def test_other_errors_are_logged_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    reply = answer_raising(ValueError(TEXT))
    assert caplog.messages == [reply.error.reason]


def test_an_exit_of_flower_passes_where_rows_are_read() -> None:
    """Flower ends the process so at SIGTERM; an exit with a text may hold data."""
    with pytest.raises(SystemExit), reading(limited=False):
        raise SystemExit(0)
    with pytest.raises(DataError), reading(limited=False):
        raise SystemExit("a row")
