"""A malicious server asks a node about its data: its questions have the same answer for all data.

A server that chose columns and labels could learn, before any charge, whether a value occurs in a
column: naming every value but one made reading fail exactly if that one occurred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from messaging import content_of
from workers import handshake, node_context, state_folder, task_vector

from clients.errors import WITHHELD
from deployment.node import relay
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.statement import Composition
from fedpeft.runtime import runtime_of
from fedpeft.wire.messages import HandshakeReply, TrainReply
from server.flower import new_run

Quick = Callable[..., Experiment]
CUSTOM = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0", "task.text=note"]
AGREED = [*CUSTOM, "task.label=mood", "task.labels=bad,good"]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=3", "local.batch_size=4"]
OPTIONS: dict[str, Any] = {"text": "note", "label": "mood", "labels": ("bad", "good")}
LIMITED: dict[str, Any] = {"max_epsilon": 50.0, "examples": 20}
AGES, DIAGNOSES = range(30, 42), ("flu", "asthma", "hiv")


@pytest.fixture(autouse=True)
def run() -> None:
    """Start a run, so that messages can be made."""
    new_run()


def patients(hiv: int = 1, count: int = 24) -> list[str]:
    """Return the rows of a table; only the first ``hiv`` have that diagnosis."""
    return [
        f"visit {number},{('bad', 'good')[number % 2]},{AGES[number % 7]},"
        f"{'hiv' if number < hiv else 'flu'}"
        for number in range(count)
    ]


def node(folder: Path, rows: Sequence[str], **options: Any) -> Path:
    """Make the state folder of a node with these rows."""
    folder.mkdir()
    (folder / "own.csv").write_text("\n".join(["note,mood,age,diagnosis", *rows]) + "\n")
    settings = {**OPTIONS, "data": str(folder / "own.csv"), "partition": None, **options}
    return state_folder(folder / "state", **settings)


def answered(state: Path, message: Message) -> bytes:
    """Return everything in a node's reply that the server can see."""
    reply = relay.app(message, node_context(state))
    if reply.has_error():
        return f"{reply.error.code} {reply.error.reason}".encode()
    return repr(
        {name: sorted(dict(record).items()) for name, record in reply.content.items()}
    ).encode()


def guesses(column: str, values: Sequence[object]) -> list[list[str]]:
    """Return settings that name every value of a column but one, for each of them."""
    without = [[str(other) for other in values if other != value] for value in values]
    return [[f"task.label={column}", f"task.labels={','.join(names)}"] for names in without]


@pytest.mark.parametrize("limits", [{}, LIMITED])
@pytest.mark.parametrize(("column", "values"), [("age", AGES), ("diagnosis", DIAGNOSES)])
def test_naming_every_value_but_one_reveals_nothing(
    tmp_path: Path, quick: Quick, limits: dict[str, Any], column: str, values: Sequence[object]
) -> None:
    state = node(tmp_path / "node", patients(), **limits)
    private = PRIVATE if limits else []
    replies = {
        answered(state, handshake(quick(*CUSTOM, *private, *guess)))
        for guess in guesses(column, values)
    }
    assert replies == {b"2 Refusal: task.label differs from this node's data; expected 'mood'"}


@pytest.mark.parametrize("limits", [{}, LIMITED])
@pytest.mark.parametrize(
    ("guess", "expected"),
    [
        ("task.text=diagnosis", "task.text differs from this node's data; expected 'note'"),
        ("task.text_pair=age", "task.text_pair differs from this node's data; expected ''"),
        ("task.labels=good,bad", "task.labels differs from this node's data; expected 'bad,good'"),
        ("task.labels=bad,good,hiv", "task.labels differs from this node's data; expected"),
        ("task.kind=tags", "task.kind differs from this node's data; expected 'classes'"),
    ],
)
def test_a_run_that_reads_the_data_in_another_way_is_refused_by_name(
    tmp_path: Path, quick: Quick, limits: dict[str, Any], guess: str, expected: str
) -> None:
    """Before any data is read: the file is missing."""
    state = node(tmp_path / "node", patients(), **limits)
    (tmp_path / "node" / "own.csv").unlink()
    reply = answered(state, handshake(quick(*AGREED, guess)))
    assert reply.decode().startswith(f"2 Refusal: {expected}")


def test_another_name_of_the_task_is_refused(tmp_path: Path, quick: Quick) -> None:
    state = node(tmp_path / "node", patients())
    for name in ("sst2", "conll2003", "synthetic/sentiment"):
        reply = answered(state, handshake(quick(f"task.name={name}")))
        expected = b"2 Refusal: task.name differs from this node's data; expected 'custom'"
        assert reply == expected


def test_rules_come_before_the_data(tmp_path: Path, quick: Quick) -> None:
    state = node(tmp_path / "node", patients(), max_epsilon=1.0, examples="exact")
    (tmp_path / "node" / "own.csv").unlink()
    reply = answered(state, handshake(quick(*AGREED)))
    assert reply.startswith(b"2 Refusal: privacy.unit = 'none'")


QUESTIONS = [
    AGREED,
    [*AGREED, *PRIVATE],
    [*AGREED, *PRIVATE, "local.batch_size=20"],
    [*AGREED, *PRIVATE, "local.batch_size=24"],
    [*AGREED, *PRIVATE, "privacy.delta=0.049"],
    [*AGREED, *PRIVATE, "privacy.noise_multiplier=0.3"],
    [*AGREED, *PRIVATE, "task.held_out=0.9"],
    [*AGREED, *PRIVATE, "task.train_limit=24"],
    [*AGREED, *PRIVATE, "task.labels=bad,worse"],
    [*CUSTOM, *PRIVATE, "task.label=age", "task.kind=score"],
    [*CUSTOM, *PRIVATE],
]


def test_a_limited_node_answers_alike_for_data_that_differ_in_one_row(
    tmp_path: Path, quick: Quick
) -> None:
    """One row replaced, added or removed, and even a row that cannot be read."""
    rows = patients()
    others = [
        patients(hiv=0),
        rows[1:],
        [*rows, "another,good,1,flu"],
        [*rows[1:], "x,awful,1,flu"],
    ]
    states = [node(tmp_path / f"{k}", data, **LIMITED) for k, data in enumerate([rows, *others])]
    for question in QUESTIONS:
        asked = handshake(quick(*question))
        assert len({answered(state, asked) for state in states}) == 1, question
    evaluation = quick(*AGREED, *PRIVATE)
    start = runtime_of(evaluation).parameters.initial(0)
    for bad in (start, start * 0 + 3e38, start[1:]):
        asked = task_vector("evaluate", evaluation, bad)
        assert len({answered(state, asked) for state in states}) == 1
    assert not any((state / "privacy.sqlite").exists() for state in states)


def test_the_handshake_of_a_limited_node_reads_nothing(tmp_path: Path, quick: Quick) -> None:
    state, asked = node(tmp_path / "node", patients(), **LIMITED), quick(*AGREED, *PRIVATE)
    expected = answered(state, handshake(asked))
    (tmp_path / "node" / "own.csv").unlink()
    assert answered(state, handshake(asked)) == expected
    assert b"Refusal" not in expected


def test_every_error_about_the_data_is_one_text_where_epsilon_is_limited(
    tmp_path: Path, quick: Quick, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {
        "label": [*patients(), "x,awful,1,flu"],
        "empty": [*patients(), ",good,1,flu"],
        "fields": [*patients(), "x,good,1,flu,more"],
        "none": [],
    }
    experiment = quick(*AGREED, *PRIVATE)
    start = runtime_of(experiment).parameters.initial(0)
    for name, rows in broken.items():
        state = node(tmp_path / name, patients(), **LIMITED)
        context = node_context(state)
        assert relay.app(handshake(experiment), context).has_content()
        (tmp_path / name / "own.csv").write_text("\n".join(["note,mood,age,diagnosis", *rows]))
        reply = relay.app(task_vector("train", experiment, start), context)
        assert reply.error.reason == WITHHELD, name
    for detail in ("mood = 'awful' is none of the labels", "column 'note' is empty"):
        assert detail in caplog.text  # the operator's log has the details


def test_data_that_changed_since_a_charge_is_the_same_text(tmp_path: Path, quick: Quick) -> None:
    state, experiment = node(tmp_path / "node", patients(), **LIMITED), quick(*AGREED, *PRIVATE)
    context = node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()
    (tmp_path / "node" / "own.csv").write_text("note,mood\n" + "fine,good\n" * 24)
    reply = relay.app(task_vector("train", experiment, start, 2), context)
    assert reply.error.reason == WITHHELD


@pytest.mark.parametrize(
    ("shown", "expected"), [("exact", 24), ("rounded", 20), (1, 1), (3000, 3000)]
)
def test_the_operator_chooses_the_number_of_examples_that_is_shown(
    tmp_path: Path, quick: Quick, shown: str | int, expected: int
) -> None:
    """All rows: a node that limits its epsilon holds out nothing."""
    limit = {"max_epsilon": 50.0} if shown != 1 else {}
    state = node(tmp_path / "node", [*patients(), *patients(count=3)][:24], examples=shown, **limit)
    experiment = quick(*AGREED, *(PRIVATE if limit else []))
    reply = relay.app(handshake(experiment), node_context(state))
    assert content_of(reply, HandshakeReply).examples == expected


def test_the_shown_number_decides_the_sampling_of_private_training(
    tmp_path: Path, quick: Quick
) -> None:
    """The mechanism that is charged and stated does not depend on the number of rows."""
    experiment = quick(*AGREED, *PRIVATE, "local.steps=3")
    asked = task_vector("train", experiment, runtime_of(experiment).parameters.initial(0))
    statements = set()
    for count in (23, 24):
        state = node(tmp_path / f"{count}", patients(count=count), **LIMITED)
        context = node_context(state)
        relay.app(handshake(experiment), context)
        statements.add(content_of(relay.app(asked, context), TrainReply).example)
    (statement,) = statements
    assert Composition.from_bytes(statement).mechanisms == (Mechanism(3.0, 0.2, 3),)
