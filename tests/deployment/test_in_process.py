"""Deployed apps without processes: the server's and the nodes' state folders, the real apps."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fedpeft.config import Experiment
from fedpeft.errors import RunFailed, UserError
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.ledger import read_ledger
from server.app import app as server_app
from simulations.local import run_local
from simulations.run import prepare, simulate

NodeState = Callable[..., Path]


def deploy(
    experiment: Experiment,
    states: list[Path],
    resume: bool = False,
    app: ClientApp = client_app,
) -> None:
    """Run the apps as a deployment would; the nodes' ids are 1000, 1001, ..."""
    nodes = [{"state": str(state)} for state in states]
    run_config = {"experiment": experiment.to_toml(), "out": "trial", "resume": int(resume)}
    run_local(server_app, app, nodes, run_config)


def simulated(
    experiment: Experiment, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the result of a simulation, which knows no server's state folder."""
    monkeypatch.delenv("FEDPEFT_SERVER_STATE")
    return simulate(prepare(experiment, folder / "simulated")[0], experiment)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_own_files_give_the_bits_of_the_simulation_of_the_same_clients(
    tmp_path: Path,
    data_folders: list[Path],
    pooled: list[str],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = server_state([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    deploy(Experiment.load("", settings), states)
    run = server / "runs" / "trial"
    expected = simulated(Experiment.load("", [*settings, *pooled]), tmp_path, monkeypatch)
    found = read(run / "result.json")
    assert found["digests"]["vector"] == expected["digests"]["vector"]
    assert found["digests"]["backbone"] == expected["digests"]["backbone"]
    # Who evaluates which of the 24 rows differs, their sum does not.
    assert found["score"] == expected["score"]
    assert found["metrics"] == expected["metrics"]
    end = read(run / "ended.json")
    assert (end["ok"], end["reason"]) == (True, "") and end["run"].isdigit()
    clients = read(run / "roster.json")["nodes"]
    assert [(each["client"], each["name"], each["rounds"]) for each in clients] == [
        (0, "site0", 3),
        (1, "site1", 3),
    ]


def test_parts_of_a_public_task_give_the_bits_of_the_simulation(
    tmp_path: Path,
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = server_state([1000, 1001])
    quick = [
        "backbone=tiny",
        "method.d=32",
        "task.train_limit=60",
        "task.eval_limit=20",
        "engine.cohort=1",
        "engine.threads=1",
    ]
    experiment = Experiment.load("", [*quick, "federation.clients=2", "federation.rounds=2"])
    # Registered the other way round: the part's number is the client's.
    deploy(experiment, [node_state("b", partition=1), node_state("a", partition=0)])
    expected = simulated(experiment, tmp_path, monkeypatch)
    found = read(server / "runs" / "trial" / "result.json")
    assert found["digests"]["vector"] == expected["digests"]["vector"]
    assert found["score"] == expected["score"]


def test_numbers_follow_the_order_of_registration_and_stay(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
) -> None:
    server = server_state([1001, 1000, 1002])  # one more than the run needs
    states = [node_state(f"node{k}", data_folders[k % 2]) for k in range(3)]
    stopping = Stopping(round=2)
    with pytest.raises(RunFailed, match="round 2: 0 of 2 clients succeeded"):
        deploy(Experiment.load("", settings), states, app=stopping)
    run = server / "runs" / "trial"
    reason = read(run / "ended.json")["reason"]
    assert read(run / "ended.json")["ok"] is False and reason.startswith("round 2: 0 of 2")
    numbers = {each["node_id"]: each["client"] for each in read(run / "roster.json")["nodes"]}
    assert numbers == {1001: 0, 1000: 1}
    (server / "nodes.json").write_text(json.dumps(read(server / "nodes.json")[::-1]))
    deploy(Experiment.load("", settings), states, resume=True)
    clients = read(run / "roster.json")["nodes"]
    assert {each["node_id"]: each["client"] for each in clients} == numbers
    assert [each["rounds"] for each in clients] == [3, 3]
    assert read(run / "ended.json")["ok"]


class Stopping(ClientApp):
    """The real client app, but from some round on training fails."""

    def __init__(self, round: int):
        super().__init__()
        self.round = round

    def __call__(self, message: Message, context: Context) -> Message:
        config = message.content["config"]
        if message.metadata.message_type == "train" and config["round"] >= self.round:
            raise OSError("broken")
        return client_app(message, context)


def test_a_name_that_is_a_path_is_refused(
    node_state: NodeState, server_state: Callable[[list[int]], Path]
) -> None:
    server_state([1000])
    run_config = {"experiment": Experiment.load().to_toml(), "out": "../away", "resume": 0}
    with pytest.raises(UserError, match=r"out = '../away': expected a name"):
        run_local(server_app, client_app, [{"state": str(node_state("a"))}], run_config)


def test_a_node_forgets_no_experiment_when_its_context_is_lost(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
) -> None:
    server = server_state([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    deploy(Experiment.load("", settings), states, app=Forgetting())
    assert [line["failed"] for line in rounds(server)] == [[], [], []]


class Forgetting(ClientApp):
    """The real client app, at a node whose context is new with every message."""

    def __call__(self, message: Message, context: Context) -> Message:
        for key in [*context.state]:
            del context.state[key]
        return client_app(message, context)


def epsilon(ledger: Path) -> float:
    """Return what a ledger has spent, at the delta of its last charge."""
    charges = read_ledger(ledger).charges
    found = spent([charge.mechanism for charge in charges], charges[-1].delta).epsilon
    assert found is not None
    return found


def rounds(server: Path) -> list[dict[str, Any]]:
    lines = (server / "runs" / "trial" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_node_keeps_its_own_limit_of_epsilon(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_state([1000, 1001])
    states = [
        node_state("node0", data_folders[0], max_epsilon=2.0),
        node_state("node1", data_folders[1]),
    ]
    deploy(Experiment.load("", settings), states)
    said = "no handshake: site0: error 2: Refusal: privacy.unit = 'none': this node takes part only"
    assert said in caplog.text
    # Before its first round, and in none of them.
    assert [(line["clients"], line["failed"]) for line in rounds(server)] == [(1, [])] * 3
    assert not (states[0] / "privacy.sqlite").exists()

    limited = [
        *settings,
        "privacy.unit=example",
        "privacy.noise_multiplier=1",
        "local.batch_size=4",
    ]
    (server / "runs" / "trial").rename(server / "runs" / "zeroth")
    deploy(Experiment.load("", [*limited, "task.train_limit=10", "federation.rounds=1"]), states)
    assert "Refusal: task.train_limit = 10: this node limits its epsilon" in caplog.text
    assert rounds(server)[0]["evaluated"] == 8  # of 16: the other node's

    (server / "runs" / "trial").rename(server / "runs" / "held")
    few = [*limited, "task.held_out=0.9", "privacy.delta=0.2", "federation.rounds=1"]
    one_file = node_state("node0", data_folders[0] / "train.tsv", max_epsilon=2.0)
    with pytest.raises(RunFailed, match="expected less than 1 / 20, the number"):  # the other's
        deploy(Experiment.load("", few), [one_file, states[1]])
    assert "site0: error 2: Refusal: privacy.delta = 0.2, task.held_out = 0.9" in caplog.text
    assert "expects a delta below 1 / its 40 examples" in caplog.text
    (server / "runs" / "trial").rename(server / "runs" / "few")
    states[0] = node_state("node0", data_folders[0], max_epsilon=2.0)

    private = ["privacy.unit=example", "privacy.noise_multiplier=1", "local.batch_size=4"]
    more = [*settings, *private, "federation.rounds=12", "seed=1"]
    deploy(Experiment.load("", more), states)
    found = [epsilon(state / "privacy.sqlite") for state in states]
    assert found[0] <= 2.0 < found[1]
    nodes = read(server / "runs" / "trial" / "roster.json")["nodes"]
    assert nodes[0]["epsilon"]["example"] == pytest.approx(found[0])
    assert nodes[1]["epsilon"]["example"] == pytest.approx(found[1])


def test_a_node_added_while_the_run_waits_is_numbered_by_its_registration(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
) -> None:
    server = server_state([])  # nobody is registered when the run begins
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    later = json.dumps(
        [
            {"name": f"site{node}", "node_id": node, "public_key_sha256": "", "added": ""}
            for node in (1001, 1000)
        ]
    )
    timer = threading.Timer(1.5, (server / "nodes.json").write_text, [later])
    timer.start()
    deploy(Experiment.load("", settings), states)
    clients = read(server / "runs" / "trial" / "roster.json")["nodes"]
    assert [(each["client"], each["name"]) for each in clients] == [
        (0, "site1001"),
        (1, "site1000"),
    ]


def test_data_that_changes_is_read_anew(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
) -> None:
    server = server_state([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    experiment = Experiment.load("", settings)
    deploy(experiment, states)
    rows = (data_folders[0] / "train.tsv").read_text().splitlines()
    (data_folders[0] / "train.tsv").write_text("\n".join(rows[:21]) + "\n")
    (server / "runs" / "trial").rename(server / "runs" / "before")
    deploy(experiment, states)  # in the same process, as in a worker
    found = [read(server / "runs" / name / "roster.json") for name in ("before", "trial")]
    assert [each["nodes"][0]["examples"] for each in found] == [40, 20]
    digests = [
        read(server / "runs" / name / "result.json")["digests"]["vector"]
        for name in ("before", "trial")
    ]
    assert digests[0] != digests[1]


def test_two_runs_of_one_experiment_share_no_personal_parameters(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_state: Callable[[list[int]], Path],
) -> None:
    server = server_state([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    experiment = Experiment.load("", [*settings, "federation.personal=head", "local.lr=0.1"])
    for name in ("first", "second"):
        deploy(experiment, states)
        (server / "runs" / "trial").rename(server / "runs" / name)
    results = [read(server / "runs" / name / "result.json") for name in ("first", "second")]
    assert results[0]["digests"]["vector"] == results[1]["digests"]["vector"]
    assert results[0]["score"] == results[1]["score"]
    assert len([*(states[0] / "personal").iterdir()]) == 2
