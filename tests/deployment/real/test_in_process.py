"""The real apps with the state folders of a deployment, in one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from inprocess import deploy, read, rounds, simulated
from messaging import content_of
from replay import trained

from clients.app import app as client_app
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.ledger import read_ledger
from fedpeft.wire.messages import Request
from server.app import app as server_app
from simulations.engines.local import run_local

NodeState = Callable[..., Path]
SLOPES = [
    *("local.perturbations=3", "local.steps=1", "wire.up=scalars", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0"),
]
VOTES = [*SLOPES, "wire.up=signs", "federation.strategy=fedmedian"]


def test_clients_with_files_of_rows_give_the_bits_of_the_simulation(
    tmp_path: Path,
    data_folders: list[Path],
    pooled: list[str],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = server_folder([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    deploy(Experiment.load("", settings), states)
    run = server / "runs" / "trial"
    expected = simulated(Experiment.load("", [*settings, *pooled]), tmp_path, monkeypatch)
    result = read(run / "result.json")
    assert result["digests"]["vector"] == expected["digests"]["vector"]
    assert result["digests"]["backbone"] == expected["digests"]["backbone"]
    # Who evaluates which of the 24 rows differs, their sum does not.
    assert result["score"] == expected["score"]
    assert result["metrics"] == expected["metrics"]
    end = read(run / "ended.json")
    assert (end["ok"], end["reason"]) == (True, "") and end["run"].isdigit()
    clients = read(run / "roster.json")["nodes"]
    assert [(node["client"], node["name"], node["rounds"]) for node in clients] == [
        (0, "site0", 3),
        (1, "site1", 3),
    ]


@pytest.mark.parametrize(
    "codecs",
    [
        [],
        ["wire.up=bfloat16", "wire.down=float16"],
        ["wire.up=eden0.5", "wire.down=eden8"],
        ["wire.up=eden4", "wire.head=eden1", "wire.down=delta4"],
        ["wire.up=topk0.1", "wire.down=delta1"],
        ["wire.up=scalars", "local.perturbations=3", "local.steps=2"],
        SLOPES,
        VOTES,
        ["wire.up=eden1", "wire.down=eden8", "nested.d=8"],
        ["head.start=sums"],
        ["head.start=sums", "wire.down=eden8", "federation.evaluation=clients"],
        ["head.start=sums", "wire.down=delta1", "head.lr=0.001"],
        ["head.start=sums", "head.lr=0.001", *SLOPES],
    ],
    ids=[
        *("float32", "formats", "eden", "head", "delta", "scalars", "slopes", "votes", "nested"),
        *("sums", "sums-eden", "sums-delta", "sums-slopes"),
    ],
)
def test_parts_of_a_public_task_give_the_bits_of_the_simulation(
    codecs: list[str],
    tmp_path: Path,
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = server_folder([1000, 1001])
    quick = [
        "backbone=tiny",
        "method.d=32",
        "task.train_limit=60",
        "task.eval_limit=20",
        "engine.cohort=1",
        "engine.threads=1",
    ]
    federation = ["federation.clients=2", "federation.rounds=2"]
    experiment = Experiment.load("", [*quick, *federation, *codecs])
    # Registered the other way round: the part's number is the client's.
    deploy(experiment, [node_state("b", partition=1), node_state("a", partition=0)])
    expected = simulated(experiment, tmp_path, monkeypatch)
    result = read(server / "runs" / "trial" / "result.json")
    assert result["digests"]["vector"] == expected["digests"]["vector"]
    assert result["score"] == expected["score"]


def test_client_numbers_follow_the_order_of_registration(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
) -> None:
    server = server_folder([1001, 1000, 1002])  # one more than the run needs
    states = [node_state(f"node{k}", data_folders[k % 2]) for k in range(3)]
    stopping = Stopping(first=2)
    with pytest.raises(RunFailed, match="round 2: 0 of 2 clients succeeded"):
        deploy(Experiment.load("", settings), states, app=stopping)
    run = server / "runs" / "trial"
    reason = read(run / "ended.json")["reason"]
    assert read(run / "ended.json")["ok"] is False and reason.startswith("round 2: 0 of 2")
    numbers = {node["node_id"]: node["client"] for node in read(run / "roster.json")["nodes"]}
    assert numbers == {1001: 0, 1000: 1}
    (server / "nodes.json").write_text(json.dumps(read(server / "nodes.json")[::-1]))
    deploy(Experiment.load("", settings), states, resume=True)
    clients = read(run / "roster.json")["nodes"]
    assert {node["node_id"]: node["client"] for node in clients} == numbers
    assert [node["rounds"] for node in clients] == [3, 3]
    assert read(run / "ended.json")["ok"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_three_nodes_start_from_sums_with_the_bits_of_the_simulation_also_after_a_failure(
    first: int,
    tmp_path: Path,
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clients fail in the start, in round 1 or in round 2; then the run continues."""
    server = server_folder([1000, 1001, 1002])
    quick = ["backbone=tiny", "method.d=32", "task.train_limit=60", "task.eval_limit=20"]
    engine = ["engine.cohort=1", "engine.threads=1", "federation.clients=3", "federation.rounds=3"]
    start = ["head.start=sums", "wire.down=eden8", "federation.evaluation=clients"]
    experiment = Experiment.load("", [*quick, *engine, *start])
    states = [node_state(f"node{k}", partition=k) for k in range(3)]
    with pytest.raises(RunFailed, match=f"round {first}: 0 of 3 clients succeeded"):
        deploy(experiment, states, app=Stopping(first))
    deploy(experiment, states, resume=True)
    expected = simulated(experiment, tmp_path, monkeypatch)
    result = read(server / "runs" / "trial" / "result.json")
    assert result["digests"]["vector"] == expected["digests"]["vector"]
    assert result["start"] == expected["start"]


class Stopping(ClientApp):
    """The real client app, but training fails from a given round on."""

    def __init__(self, first: int):
        super().__init__()
        self.first = first

    def __call__(self, message: Message, context: Context) -> Message:
        trains = message.metadata.message_type == "train"
        if trains and content_of(message, Request).round >= self.first:
            raise OSError("broken")
        return client_app(message, context)


@pytest.mark.parametrize("down", ["float32", "eden8"])
def test_an_asynchronous_run_goes_on_where_it_was_killed(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    down: str,
) -> None:
    server = server_folder([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    private = ["privacy.unit=example", "privacy.noise_multiplier=1"]
    asynchronous = ["federation.mode=async", "federation.buffer=1", "federation.rounds=6"]
    experiment = Experiment.load("", [*settings, *asynchronous, *private, f"wire.down={down}"])
    for first in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            deploy(experiment, states, resume=first > 3, app=Killing(first))
    deploy(experiment, states, resume=True)
    run = server / "runs" / "trial"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [(line["round"], line["clients"], line["failed"]) for line in lines] == [
        (number, 1, []) for number in range(1, 7)
    ]
    assert read(run / "ended.json")["ok"]
    # The reply to a repeated request counts, even if it arrives at once.
    assert {client for number, client in trained(run) if number > 4} == {0, 1}
    # A request that the server repeats is answered with what was trained, and charged once.
    charged = sum(len(read_ledger(state / "privacy.sqlite").charges) for state in states)
    assert charged <= 6 + 2


class Killing(ClientApp):
    """The real client app, but the process dies before a given round is trained."""

    def __init__(self, first: int):
        super().__init__()
        self.first = first

    def __call__(self, message: Message, context: Context) -> Message:
        trains = message.metadata.message_type == "train"
        if trains and content_of(message, Request).round >= self.first:
            raise KeyboardInterrupt
        return client_app(message, context)


def test_a_runs_name_must_not_be_a_path(
    node_state: NodeState, server_folder: Callable[[list[int]], Path]
) -> None:
    server_folder([1000])
    run_config = {"experiment": Experiment.load().to_toml(), "out": "../away", "resume": 0}
    with pytest.raises(UserError, match=r"out = '../away': expected a name"):
        run_local(server_app, client_app, [{"state": str(node_state("a"))}], run_config)


def test_a_node_forgets_no_experiment_when_its_context_is_lost(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
) -> None:
    server = server_folder([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    deploy(Experiment.load("", settings), states, app=Forgetting())
    assert [line["failed"] for line in rounds(server)] == [[], [], []]


class Forgetting(ClientApp):
    """The real client app at a node that loses its context after every message."""

    def __call__(self, message: Message, context: Context) -> Message:
        for key in [*context.state]:
            del context.state[key]
        return client_app(message, context)


def epsilon(ledger: Path) -> float:
    """Return the epsilon spent in a ledger, at the delta of its last charge."""
    charges = read_ledger(ledger).charges
    result = spent([charge.mechanism for charge in charges], charges[-1].delta).epsilon
    assert result is not None
    return result


def test_a_node_enforces_the_epsilon_limit_of_its_operator(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_folder([1000, 1001])
    states = [
        node_state("node0", data_folders[0], max_epsilon=2.0, examples=40),
        node_state("node1", data_folders[1]),
    ]
    deploy(Experiment.load("", settings), states)
    refusal = (
        "no handshake: site0: error 2: Refusal: privacy.unit = 'none': this node takes part only"
    )
    assert refusal in caplog.text
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
    one_file = data_folders[0] / "train.tsv"
    one_file = node_state("node0", one_file, max_epsilon=2.0, examples=40)
    with pytest.raises(RunFailed, match="expected less than 1 / 20, the number"):  # the other's
        deploy(Experiment.load("", few), [one_file, states[1]])
    assert (
        "site0: error 2: UserError: privacy.delta = 0.2: expected less than 1 / 40" in caplog.text
    )
    (server / "runs" / "trial").rename(server / "runs" / "few")
    states[0] = node_state("node0", data_folders[0], max_epsilon=2.0, examples=40)

    private = ["privacy.unit=example", "privacy.noise_multiplier=1", "local.batch_size=4"]
    more = [*settings, *private, "federation.rounds=12", "seed=1"]
    deploy(Experiment.load("", more), states)
    epsilons = [epsilon(state / "privacy.sqlite") for state in states]
    assert epsilons[0] <= 2.0 < epsilons[1]
    nodes = read(server / "runs" / "trial" / "roster.json")["nodes"]
    assert nodes[0]["epsilon"]["example"] == pytest.approx(epsilons[0])
    assert nodes[1]["epsilon"]["example"] == pytest.approx(epsilons[1])


def test_a_node_added_while_the_run_waits_is_numbered_by_its_registration(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
) -> None:
    server = server_folder([])  # nobody is registered when the run begins
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
    assert [(node["client"], node["name"]) for node in clients] == [
        (0, "site1001"),
        (1, "site1000"),
    ]


def test_changed_data_is_read_again(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
) -> None:
    server = server_folder([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    experiment = Experiment.load("", settings)
    deploy(experiment, states)
    rows = (data_folders[0] / "train.tsv").read_text().splitlines()
    (data_folders[0] / "train.tsv").write_text("\n".join(rows[:21]) + "\n")
    (server / "runs" / "trial").rename(server / "runs" / "before")
    deploy(experiment, states)  # in the same process, as in a worker
    rosters = [read(server / "runs" / name / "roster.json") for name in ("before", "trial")]
    assert [roster["nodes"][0]["examples"] for roster in rosters] == [40, 20]
    digests = [
        read(server / "runs" / name / "result.json")["digests"]["vector"]
        for name in ("before", "trial")
    ]
    assert digests[0] != digests[1]


def test_two_runs_of_one_experiment_share_no_personal_parameters(
    data_folders: list[Path],
    settings: list[str],
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
) -> None:
    server = server_folder([1000, 1001])
    states = [node_state(f"node{k}", data) for k, data in enumerate(data_folders)]
    experiment = Experiment.load("", [*settings, "federation.personal=head", "local.lr=0.1"])
    for name in ("first", "second"):
        deploy(experiment, states)
        (server / "runs" / "trial").rename(server / "runs" / name)
    results = [read(server / "runs" / name / "result.json") for name in ("first", "second")]
    assert results[0]["digests"]["vector"] == results[1]["digests"]["vector"]
    assert results[0]["score"] == results[1]["score"]
    assert len([*(states[0] / "kept" / "personal").iterdir()]) == 2
