"""Failures have a kind, on which the server decides, and a text, which it only shows."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from messaging import changed

from clients.app import app as client_app
from clients.data import KEPT_FOLDER, partition_of, simulated_ledger
from fedpeft.devices import device_of, vanishes
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runtime import runtime_of
from fedpeft.vectorfile import IDENTITY
from fedpeft.version import __version__
from fedpeft.wire.failures import CODES, Failure, FailureKind
from server.app import play_round, start
from server.byte_ledger import ByteLedger
from server.clock import Clock, RealClock
from server.nodes import Node
from server.run import Run
from server.runfolder import RunFolder
from server.training import Trained as Outcome
from server.training import silent_nodes, train
from simulations.device_grid import DeviceGrid
from simulations.grid import NodeConfig
from simulations.local import LocalGrid
from simulations.simulation import node_config, prepare

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
Trained = Callable[..., tuple[dict[int, Failure], list[int]]]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1"]
SECURE = ["federation.secure=true", "secure.colluders=1"]
SLOW = ["devices.step_seconds=100", "devices.spread=1"]


class Coded(ClientApp):
    """The real client app, but client 1 answers one kind of message with an error."""

    def __init__(self, code: int, kind: str = "train"):
        super().__init__()
        self.code, self.kind, self.asked = code, kind, 0

    def __call__(self, message: Message, context: Context) -> Message:
        meant = message.metadata.message_type == self.kind
        if not meant or context.node_config["partition-id"] != 1:
            return client_app(message, context)
        self.asked += 1
        text = "late: lost: no reply: error 1001: refused: what the text says decides nothing"
        return Message(Error(self.code, text), reply_to=message)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """Return a runner of the training of one round, after ``before`` whole rounds.

    ``config`` is of the node of client 1.

    It returns the failures by client, and the clients whose privacy the server assumes as spent.
    """

    def run(
        experiment: Experiment, app: ClientApp = client_app, before: int = 0, **config: Any
    ) -> tuple[dict[int, Failure], list[int]]:
        folder, runtime = prepare(experiment, tmp_path / "run")
        shared = node_config(folder.path, experiment)
        nodes: list[NodeConfig] = [
            {"partition-id": client, **shared} for client in range(experiment.federation.clients)
        ]
        nodes[1] |= config
        local = LocalGrid(app, nodes)
        grid = DeviceGrid(local, experiment) if experiment.devices.step_seconds else local
        clock = grid if isinstance(grid, Clock) else RealClock()
        playing = Run(grid, runtime, folder, clock=clock)
        state = start(playing)
        for _ in range(before):
            state = play_round(playing, state)
        ledger = ByteLedger()
        state.participants.refresh(ledger, state.round + 1)
        done = train(playing, state, ledger)
        nodes_asked = {node.node_id: client for client, node in done.nodes.items()}
        silent = [nodes_asked[node.node_id] for node in silent_nodes(playing, state, done)]
        return done.failed, sorted(silent)

    return run


def kinds(failed: dict[int, Failure]) -> dict[int, FailureKind]:
    return {client: failure.kind for client, failure in failed.items()}


def test_all_kinds_but_two_may_have_trained() -> None:
    unspent = {kind for kind in FailureKind if not kind.may_have_trained}
    assert unspent == {FailureKind.SPENT, FailureKind.UNCHARGED}


@pytest.mark.parametrize(
    ("unit", "counted"), [(["example"], []), (["both", "privacy.client_noise=clients"], [0, 1])]
)
def test_a_spent_budget(
    quick: Quick, trained: Trained, unit: list[str], counted: list[int]
) -> None:
    """Of two units the first may be charged before the second is refused."""
    settings = ["privacy.epsilon=5", "privacy.participations=1", "privacy.unit=" + unit[0]]
    failed, silent = trained(quick(*settings, *unit[1:], "federation.clients=2"), before=1)
    assert kinds(failed) == dict.fromkeys(range(2), FailureKind.SPENT)
    assert failed[0].text.startswith("error 1001: BudgetSpent: client 0 has spent epsilon ")
    assert silent == counted


def test_an_error_before_the_charge(quick: Quick, trained: Trained, tmp_path: Path) -> None:
    first, kept = tmp_path / "of other data", tmp_path / "kept"
    trained(quick(*PRIVATE, f"privacy.ledger={first}", "seed=5"))
    (tmp_path / "run").rename(tmp_path / "first")
    kept.mkdir()
    simulated_ledger(first, 1).rename(simulated_ledger(kept, 1))
    failed, silent = trained(quick(*PRIVATE, f"privacy.ledger={kept}"))
    assert kinds(failed) == {1: FailureKind.UNCHARGED}
    assert failed[1].text.startswith("error 1002: OtherLedger: ")
    assert silent == []


def test_a_ledger_that_cannot_tell_whether_it_was_charged(
    quick: Quick, trained: Trained, tmp_path: Path
) -> None:
    kept = tmp_path / "ledgers"
    kept.mkdir()
    simulated_ledger(kept, 1).write_bytes(b"no ledger")
    failed, silent = trained(quick(*PRIVATE, f"privacy.ledger={kept}"))
    assert kinds(failed) == {1: FailureKind.FAILED}
    assert failed[1].text.startswith("error 2: LedgerDamaged at ledger")
    assert silent == [1]


def test_an_error_in_training_after_the_charge(
    quick: Quick, trained: Trained, tmp_path: Path
) -> None:
    """The client cannot keep its personal parameters, as a file is where their folder should be."""
    (tmp_path / "file").touch()
    personal = ["federation.personal=head", "federation.evaluation=clients"]
    failed, silent = trained(quick(*PRIVATE, *personal), **{KEPT_FOLDER: str(tmp_path / "file")})
    assert kinds(failed) == {1: FailureKind.FAILED}
    assert failed[1].text.startswith("error 2: NotADirectoryError at ")
    assert silent == [1]
    assert read_ledger(simulated_ledger(tmp_path / "run" / "privacy", 1)).charges


def test_a_node_that_is_gone(quick: Quick, trained: Trained) -> None:
    experiment = quick(*SLOW, "devices.dropout=0.3", "seed=6")
    gone = [client for client in range(3) if vanishes(experiment, 1, client)]
    failed, silent = trained(experiment)
    assert kinds(failed) == dict.fromkeys(gone, FailureKind.GONE) != {}
    assert failed[gone[0]].text == "the node is not connected"
    assert silent == gone


def test_a_process_that_died_twice(quick: Quick, trained: Trained) -> None:
    app = Coded(CODES[FailureKind.DIED])
    failed, silent = trained(quick(), app)
    assert kinds(failed) == {1: FailureKind.DIED}
    assert (silent, app.asked) == ([1], 2)


def test_a_process_that_died_and_the_next_one_that_trained_nothing(
    quick: Quick, trained: Trained
) -> None:
    app = Coded(CODES[FailureKind.DIED])

    def second(message: Message, context: Context) -> Message:
        app.code = CODES[FailureKind.UNCHARGED if app.asked else FailureKind.DIED]
        return app(message, context)

    failed, silent = trained(quick(*PRIVATE), second)  # type: ignore[arg-type]
    assert kinds(failed) == {1: FailureKind.DIED} and app.asked == 2
    assert silent == [1]


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        ("timeout", FailureKind.SILENT, "no reply within "),
        ("deadline", FailureKind.LATE, "late: no reply within "),
    ],
)
def test_a_reply_that_does_not_come_in_time(
    quick: Quick, trained: Trained, key: str, kind: FailureKind, text: str
) -> None:
    """In virtual time, so that no machine is too slow."""
    taken = [device_of(quick(*SLOW), client).step_seconds for client in range(3)]
    slow = int(np.argmax(taken))
    limit = 3 * sum(sorted(taken)[1:]) / 2  # 3 steps; between the two slowest clients
    failed, silent = trained(quick(*SLOW, f"federation.{key}={limit:.0f}"))
    assert kinds(failed) == {slow: kind}
    assert failed[slow].text.startswith(text)
    assert silent == [slow]


def test_updates_of_a_sum_that_is_lost(quick: Quick, trained: Trained) -> None:
    failed, silent = trained(quick(*SECURE), Coded(CODES[FailureKind.FAILED]))
    lost = FailureKind.LOST
    assert kinds(failed) == {0: lost, 1: FailureKind.FAILED, 2: lost}
    assert failed[0].text == "lost: 2 of 3 clients masked an update, the threshold is 3"
    assert silent == [0, 1, 2]


def test_a_client_that_prepares_no_sum_was_not_asked_to_train(
    quick: Quick, trained: Trained
) -> None:
    settings = [*SECURE, "federation.clients=5"]
    failed, silent = trained(quick(*settings), Coded(CODES[FailureKind.FAILED], "query.prepare"))
    assert kinds(failed) == {1: FailureKind.UNCHARGED}
    assert silent == []


class Invalid(ClientApp):
    """The real client app, but the loss of client 1 is out of range."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        trains = message.metadata.message_type == "train"
        return changed(reply, l=-1.0) if trains and context.node_id == 1001 else reply


def test_an_invalid_reply(quick: Quick, trained: Trained) -> None:
    failed, silent = trained(quick(), Invalid())
    assert failed == {
        1: Failure(FailureKind.INVALID, "refused: loss is -1, expected 0 to 1e+06"),
    }
    assert silent == [1]


@pytest.mark.parametrize("code", [0, 1, 3, 4, 77, 1000, 1003, -1])
def test_an_unknown_code_may_have_trained(quick: Quick, trained: Trained, code: int) -> None:
    """Whatever its text says: no node can claim that it was late, or that its budget is spent."""
    failed, silent = trained(quick(), Coded(code))
    assert kinds(failed) == {1: FailureKind.FAILED}
    assert failed[1].text.startswith(f"error {code}: late: lost: no reply: error 1001: ")
    assert silent == [1]


def with_code(code: int) -> Callable[[Message], Message]:
    """Return a spoiler that replaces a reply by an error."""
    return lambda reply: make_message(reply.metadata, error=Error(code, "why"))


def test_the_privacy_of_a_client_that_may_have_trained_is_counted(
    quick: Quick, federate: Federate
) -> None:
    """The smallest client spends most. The run states it, even if no reply of it is valid."""
    unequal = [
        "partition.kind=quantity",
        "partition.min_examples=10",
        "local.steps=4",
        "task.train_limit=120",
    ]
    experiment = quick(*PRIVATE, *unequal)
    smallest, epsilon = int(np.argmin(partition_of(runtime_of(experiment)).sizes)), {}
    spoilers: dict[str, Callable[[Message], Message]] = {
        "valid": lambda reply: reply,
        "invalid": lambda reply: changed(reply, v=b""),
        "unknown": with_code(77),
        "raised": with_code(CODES[FailureKind.FAILED]),
        "uncharged": with_code(CODES[FailureKind.UNCHARGED]),
    }
    for name, spoil in spoilers.items():
        folder = federate(experiment, spoil, client=smallest, out=name)
        epsilon[name] = folder.rounds()[-1]["epsilon"]
    assert epsilon.pop("uncharged") < epsilon["valid"]
    assert set(epsilon.values()) == {epsilon["valid"]}


def test_a_checkpoint_from_before_failures_had_kinds_is_continued(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """fedpeft at commit 35e054f wrote it after two of three rounds; one client failed in each."""
    with tarfile.open(Path(__file__).parent / "kept" / "run-35e054f.tar.xz") as archive:
        archive.extractall(tmp_path / "run", filter="data")
    identity = tmp_path / "run" / IDENTITY
    # The version that began a run must continue it; this is about the content of the files.
    identity.write_text(identity.read_text().replace('"0.1.0"', f'"{__version__}"'))
    folder = federate(quick("federation.rounds=3", "task.train_limit=120"), resume=True)
    lines = folder.rounds()
    assert [(line["round"], line["clients"]) for line in lines] == [(1, 2), (2, 2), (3, 3)]
    assert [failed["client"] for line in lines for failed in line["failed"]] == [1, 2]
    assert (folder.path / "result.json").exists()


def test_a_failure_of_a_round_has_the_name_of_its_node() -> None:
    failed = {
        2: Failure(FailureKind.FAILED, "error 2: KeyError"),
        0: Failure(FailureKind.GONE, "not connected"),
        1: Failure(FailureKind.LATE, "late"),
        3: Failure(FailureKind.FAILED, "has left since"),
    }
    sent: Any = None  # what was sent is not read
    nodes = {0: Node(7, 1), 1: Node(8, 1, "south"), 2: Node(9, 1, "north")}
    outcome = Outcome(sent, nodes, {}, failed).outcome()
    assert outcome["late"] == [1]
    assert outcome["failed"] == [
        {"client": 0, "reason": "not connected"},
        {"client": 2, "name": "north", "reason": "error 2: KeyError"},
        {"client": 3, "reason": "has left since"},
    ]
