"""Text leaves a node only if its type says so; nothing that is raised while data are read does."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from messaging import arriving, handshake_request
from workers import node_context, state_folder

from clients.app import answering_errors, app
from clients.assignment import Assignment
from clients.data.client_data import LocalData, Rows, local_data
from clients.data.rules import require_rules
from clients.errors import SENDABLE, WITHHELD, ClientError, Refusal, SettingsError
from clients.privacy.charging import charge
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.wire.messages import Request
from server.flower import from_wire, new_run, to_wire

Quick = Callable[..., Experiment]
ROOT = Path(__file__).resolve().parents[2]
ROW = "Ada Lovelace, flu, a film about doctors"
PRIVATE = ("privacy.unit=example", "privacy.noise_multiplier=1")


class RegisterError(UserError):
    """The error of a reader that is no part of fedpeft."""


def value_of(line: str, kind: type[Exception]) -> int:
    """Return the diagnosis of a row; the helper quotes a row that it cannot read."""
    if not line.isdigit():
        raise kind(f"no diagnosis in '{line}'")
    return int(line)


def read_register(path: Path, kind: type[Exception]) -> Rows:
    """Read a client's rows from a file that has none which can be read."""
    values = [value_of(line, kind) for line in path.read_text().splitlines()]
    raise AssertionError(f"{values} were read")


def training(data: LocalData) -> object:
    start = data.runtime.parameters.initial(0)
    return charge(Assignment(arriving("train", Request()), data, 1, start))


USES: dict[str, Callable[[LocalData], object]] = {
    "examples": lambda data: data.examples,
    "training": lambda data: data.training,
    "evaluation": lambda data: data.evaluation,
    "rules": require_rules,
    "charge": training,
}


def answered(data: LocalData, use: Callable[[LocalData], object]) -> Message:
    """Return a node's reply, as it arrives at the server, after a handler used the data."""

    @answering_errors
    def answer(message: Message, context: Context) -> Message:
        raise AssertionError(f"{use(data)} was made of unreadable rows")

    reply = answer(arriving("train", Request()), Context(1, 1, {}, RecordDict(), {}))
    return from_wire(to_wire(reply))


@pytest.fixture
def simulated(tmp_path: Path, quick: Quick) -> LocalData:
    """The data of a simulated client of a private run."""
    return local_data(quick(*PRIVATE).to_toml(), simulated_context(tmp_path))


def simulated_context(folder: Path) -> Context:
    node = {"partition-id": 0, "num-partitions": 3}
    folders = {"privacy-folder": str(folder / "privacy"), "kept-folder": str(folder / "kept")}
    return Context(new_run().run_id, 1, {**node, **folders}, RecordDict(), {})


@pytest.mark.parametrize(
    "kind", [RegisterError, ValueError, ClientError, Refusal, SettingsError, BudgetSpent]
)
def test_no_text_of_a_reader_leaves_the_node(
    simulated: LocalData, tmp_path: Path, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever helper raises it, wherever it is, and even as a type that may be sent otherwise."""
    register = tmp_path / "register.txt"
    register.write_text(f"1\n2\n{ROW}\n")
    data = replace(simulated, read=lambda: read_register(register, kind))
    for name in USES.keys() - {"rules"}:
        reply = answered(data, USES[name])
        assert reply.error.reason.startswith(f"{kind.__name__} at test_data_errors.py:"), name
        assert reply.error.code == 2
        assert not any(word.encode() in to_wire(reply) for word in ("Lovelace", "flu", "doctors"))
    if issubclass(kind, UserError | ClientError):  # fedpeft's errors are the operator's to read
        assert ROW in caplog.text


def test_a_reader_at_a_node_that_limits_epsilon_is_answered_by_one_text(
    tmp_path: Path, quick: Quick
) -> None:
    register = tmp_path / "register.txt"
    register.write_text(ROW)
    new_run()
    limits = {"max_epsilon": 1e6, "examples": "exact"}
    own = {"data": str(register), "partition": None, "labels": ("bad", "good"), **limits}
    state = state_folder(tmp_path / "state", **own)
    custom = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0"]
    experiment = quick(*custom, "task.labels=bad,good", *PRIVATE)
    data = local_data(experiment.to_toml(), node_context(state), 0)
    for kind in (RegisterError, ClientError, BudgetSpent, OSError):
        read = replace(data, read=lambda kind=kind: read_register(register, kind))
        for name, use in USES.items():
            error = answered(read, use).error
            assert (error.code, error.reason) == (2, WITHHELD), (kind, name)


def test_an_error_of_the_partition_is_sent_without_its_text(tmp_path: Path, quick: Quick) -> None:
    """It would tell how many different values a column of the data has."""
    lines = [f"{number}\tfilm\t{('bad', 'good')[number % 2]}" for number in range(40)]
    (tmp_path / "train.tsv").write_text("\n".join(["patient\ttext\tlabel", *lines]) + "\n")
    experiment = quick(
        *("task.name=custom", f"task.path={tmp_path}", "task.train=train.tsv"),
        *("task.dev=train.tsv", "task.labels=bad,good", "task.train_limit=0"),
        *("partition.kind=natural", "partition.column=patient"),
    )
    asked = arriving("query.handshake", handshake_request(experiment), 1)
    reply = app(asked, simulated_context(tmp_path))
    assert reply.error.reason.startswith("UserError at partitioning.py:")
    assert b"patient" not in to_wire(reply) and b"40" not in reply.error.reason.encode()


def test_errors_of_the_experiment_reach_the_user_who_started_the_run(
    tmp_path: Path, quick: Quick
) -> None:
    for toml, expected in (
        ("[local]\nlr = -1", "UserError: local.lr = -1"),
        (quick("task.max_length=900").to_toml(), "UserError: task.max_length = 900: 'tiny' reads"),
    ):
        fields = replace(handshake_request(toml), digest=bytes(32))
        reply = app(arriving("query.handshake", fields, 1), simulated_context(tmp_path))
        assert reply.error.reason.startswith(expected)


def test_settings_that_do_not_fit_the_number_of_examples_reach_the_user(
    simulated: LocalData,
) -> None:
    few = replace(simulated, read=lambda: Rows(simulated.runtime, np.arange(2), np.arange(1)))
    reason = answered(few, training).error.reason
    assert reason.startswith("UserError: local.batch_size = 8"), reason


def test_the_types_whose_text_may_be_sent_are_these() -> None:
    """A new subclass must be added here, after a look at all texts that it is raised with."""
    bases: dict[str, set[str]] = {}
    for path in (path for part in ("clients", "fedpeft") for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                bases[node.name] = bases.get(node.name, set()) | names
    sendable = {kind.__name__ for kind in SENDABLE}
    while more := {name for name in bases if bases[name] & sendable} - sendable:
        sendable |= more
    assert sendable == {"ClientError", "Refusal", "SettingsError", "BudgetSpent", "OtherLedger"}
