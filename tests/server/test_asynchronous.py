"""Asynchronous training against a literal FedBuff on the same devices, and interrupted runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from outcomes import final_vector

from clients.app import app as client_app
from clients.data.partitioning import partition
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.randomness import When, generator
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of
from fedpeft.simulated.devices import device_of
from fedpeft.training import train_cohort
from server.app import app as server_app
from simulations.engines.grid import NodeConfig
from simulations.engines.local import LocalGrid, serve
from simulations.simulation import node_config, prepare

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ASYNC = (
    *("federation.mode=async", "federation.clients=6", "federation.per_round=4"),
    *("federation.buffer=2", "federation.rounds=5", "federation.max_update_norm=0"),
    *("devices.step_seconds=1", "devices.spread=1"),
)


def fedbuff(experiment: Experiment) -> tuple[np.ndarray, list[float], list[list[int]]]:
    """Return the last vector, the time of each step, and its clients: one event after another."""
    runtime, federation = runtime_of(experiment), experiment.federation
    examples = [runtime.train.select(rows) for rows in partition(runtime.task, experiment)]
    steps = [-(-len(each) // experiment.local.batch_size) for each in examples]
    vector = runtime.parameters.initial_shared(experiment.seed)
    training: dict[int, tuple[float, int, np.ndarray]] = {}  # client -> end, round, start
    now, ends, clients = 0.0, [], []
    for number in range(1, federation.rounds + 1):
        draw = generator(experiment.seed, "sample", number)
        changes: dict[int, np.ndarray] = {}
        while len(changes) < federation.buffer:
            idle = [c for c in range(federation.clients) if c not in training and c not in changes]
            wanted = min(experiment.clients_per_round - len(training), len(idle))
            for client in draw.choice(idle, wanted, replace=False) if wanted else []:
                seconds = steps[client] * device_of(experiment, int(client)).step_seconds
                training[int(client)] = now + seconds, number, vector
            client = min(training, key=lambda each: (training[each][0], each))
            now, began, start = training.pop(client)
            when = When(experiment.seed, began, federation.rounds)
            trained = train_cohort(
                runtime.model, start, [examples[client]], [client], experiment.local, when
            ).vectors[0]
            weight = 1 / (1 + number - began) ** federation.staleness
            changes[client] = weight * (trained.astype(np.float64) - start)
        vector = (vector + np.mean([*changes.values()], axis=0)).astype(np.float32)
        ends.append(now)
        clients.append(sorted(changes))
    return vector, ends, clients


def interrupt(reply: Message) -> Message:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("staleness", "spread"), [(0, 1), (0.5, 1), (2, 1), (0.5, 0)])
def test_a_run_equals_one_event_after_another(
    quick: Quick, federate: Federate, staleness: float, spread: float
) -> None:
    """Without a spread the replies of all clients arrive together: each step takes the next two."""
    devices = f"devices.spread={spread}"
    experiment = quick(*ASYNC, f"federation.staleness={staleness}", devices)
    vector, ends, clients = fedbuff(experiment)
    folder = federate(experiment)
    np.testing.assert_allclose([line["virtual"] for line in folder.rounds()], ends, rtol=1e-12)
    up: dict[int, list[int]] = {}
    for line in map(json.loads, (folder.path / "bytes.jsonl").read_text().splitlines()):
        if line["kind"] == "train" and "up" in line:
            up.setdefault(line["round"], []).append(line["client"])
    assert [sorted(up[number]) for number in range(1, 6)] == clients
    np.testing.assert_allclose(final_vector(folder), vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("devices.spread=0", "federation.buffer=1"),
        ("wire.up=eden4", "wire.down=eden4", "federation.max_update_norm=auto"),
        ("wire.up=topk0.1", "federation.strategy=fedadam"),
        ("devices.dropout=0.1", "devices.up=900", "devices.availability=0.7"),
        ("federation.deadline=5", "federation.partial=true", "federation.fednova=true"),
        ("federation.personal=head", "federation.evaluation=clients"),
        ("privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    quick: Quick, federate: Federate, settings: tuple[str, ...]
) -> None:
    experiment = quick(*ASYNC, *settings)
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[2])
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[4], resume=True)
    resumed = federate(experiment, resume=True)
    assert final_vector(resumed).tobytes() == final_vector(whole).tobytes()
    for one, other in zip(resumed.rounds(), whole.rounds(), strict=True):
        for key in ("score", "loss", "virtual", "late", "failed", "clients", "epsilon"):
            assert one[key] == other[key], key


@pytest.mark.parametrize("seed", range(3))
def test_a_round_waits_for_clients_within_reach(
    quick: Quick, federate: Federate, seed: int
) -> None:
    """About one of six is, for ten minutes: rounds wait for their replies all the same."""
    rare = ("devices.availability=0.2", "devices.step_seconds=100", f"seed={seed}")
    folder = federate(quick(*ASYNC, *rare, "federation.buffer=3"))
    assert [line["clients"] for line in folder.rounds()] == [3] * 5


class Leaving(LocalGrid):
    """The grid of a simulation in which a node disconnects after the first round began."""

    def __init__(self, nodes: list[NodeConfig], gone: int):
        super().__init__(client_app, nodes)
        self.gone, self.looks = gone, 0

    def get_node_ids(self) -> list[int]:
        self.looks += 1  # when the run starts, and in every round
        nodes = super().get_node_ids()
        return nodes if self.looks <= 2 else [node for node in nodes if node != nodes[self.gone]]


def test_the_reply_of_a_node_that_has_left_counts(quick: Quick, tmp_path: Path) -> None:
    everybody = ("federation.per_round=6", "privacy.unit=example", "privacy.noise_multiplier=1")
    experiment = quick(*ASYNC, *everybody, "devices.spread=0.3", "federation.timeout=1000")
    slowest = max(range(6), key=lambda client: device_of(experiment, client).step_seconds)
    folder, _ = prepare(experiment, tmp_path / "run")
    shared = node_config(folder.path, experiment)
    nodes: list[NodeConfig] = [{"partition-id": client, **shared} for client in range(6)]
    run_config: NodeConfig = {"experiment": experiment.to_toml(), "out": str(folder.path)}
    serve(server_app, Leaving(nodes, slowest), run_config)
    own = [line for line in folder.sent() if (line["kind"], line["client"]) == ("train", slowest)]
    assert [line["round"] for line in own if "down" in line] == [1]
    (replied,) = [line["round"] for line in own if "up" in line]
    assert replied > 1
    assert folder.rounds()[replied - 1]["clients"] == 2


def test_clients_that_still_train_at_the_end_count(quick: Quick, federate: Federate) -> None:
    private = ("privacy.unit=example", "privacy.noise_multiplier=1")
    lines: list[Any] = federate(quick(*ASYNC, *private, "task.train_limit=120")).rounds()
    steps = [line["privacy"]["example"]["steps"] for line in lines]
    assert steps[-2] < steps[-1] == 5 * 2  # as if one had trained in every round, 2 steps in each


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["federation.strategy=krum", "federation.byzantine=0"], "strategy 'krum' compares"),
        (["federation.buffer=5"], "federation.buffer = 5: more than the 4 clients"),
        (["wire.down=delta4"], "wire.down = 'delta4': continues from the round before"),
        (["privacy.unit=client", "privacy.noise_multiplier=1"], "a random sample of clients"),
        (["engine.cohort=4"], "engine.cohort = 4: clients start one by one"),
        (["federation.over_selection=1.5"], "no client is in reserve"),
        (["nested.d=8"], "leave out nested.d"),
        (["adversary.fraction=0.2"], "attackers wait for a whole round"),
        (["federation.mode=sync"], "federation.buffer = 2: is for federation.mode = 'async'"),
    ],
)
def test_contradictions_are_one_line(quick: Quick, overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        quick(*ASYNC, *overrides)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_local_noise_is_allowed(quick: Quick, federate: Federate) -> None:
    local = ("privacy.unit=client", "privacy.noise_multiplier=1", "privacy.client_noise=clients")
    last: Any = federate(quick(*ASYNC, *local)).rounds()[-1]
    assert last["privacy"]["client"]["epsilon"] > 0


def test_clients_without_a_speed_cannot_be_asynchronous(quick: Quick, tmp_path: Any) -> None:
    with pytest.raises(UserError, match="set devices"):
        prepare(quick(*ASYNC[:4]), tmp_path / "run")
