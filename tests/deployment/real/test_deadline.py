"""Clients that stop before ``federation.deadline`` and send what they have trained."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from messaging import content_of

from clients.app import app as client_app
from clients.assignment import Assignment
from clients.deadline import limit_of
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.simulated.devices import device_of
from fedpeft.training import Limit
from fedpeft.wire.messages import TrainReply
from server.app import app as server_app
from simulations.engines.local import run_local
from simulations.simulation import node_config, prepare

STEPS = 500  # many times what fits into DEADLINE
DEADLINE = 600.0  # for the server's real clock, and for that of training, where a step takes long
STEP = 20.0  # seconds
FITS = 22  # steps within 0.8 DEADLINE
PARTIAL = [f"federation.deadline={DEADLINE}", "federation.partial=true"]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1"]


class Watched(ClientApp):
    """The real client app; keeps limit and steps of each training."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[Limit | None] = []
        self.steps: list[int] = []

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            return client_app(message, context)
        self.limits.append(limit_of([Assignment.read(message, context)]))
        reply = client_app(message, context)
        self.steps.append(content_of(reply, TrainReply).steps)
        return reply


@pytest.fixture
def trial(
    data_folders: list[Path],
    settings: list[str],
    node_state: Callable[..., Path],
    server_folder: Callable[[list[int]], Path],
) -> Callable[[list[str]], tuple[Watched, list[Any], Path]]:
    """Return a runner of two rounds at one node; it returns app, rounds and the node's state."""

    def run(more: list[str]) -> tuple[Watched, list[Any], Path]:
        server, state = server_folder([1000]), node_state("node", data_folders[0])
        one = ["federation.clients=1", "federation.rounds=2"]
        experiment = Experiment.load("", [*settings, *one, *more])
        run_config = {"experiment": experiment.to_toml(), "out": "trial", "resume": 0}
        watched = Watched()
        run_local(server_app, watched, [{"state": str(state)}], run_config)
        lines = (server / "runs" / "trial" / "rounds.jsonl").read_text().splitlines()
        return watched, [json.loads(line) for line in lines], state

    return run


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [[], PRIVATE], ids=["plain", "private"])
def test_a_node_stops_in_time_and_its_partial_work_counts(
    trial: Callable[[list[str]], tuple[Watched, list[Any], Path]],
    privacy: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count(0.0, STEP)  # the clock is read before each step
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr("fedpeft.training.time", clock)
    watched, rounds, state = trial([*PARTIAL, *privacy, f"local.steps={STEPS}"])
    assert watched.limits == [Limit(seconds=0.8 * DEADLINE)] * 2
    assert [(line["clients"], line["failed"], line["late"]) for line in rounds] == [(1, [], [])] * 2
    assert watched.steps == [FITS] * 2
    assert 0.8 * DEADLINE - 5 * STEP < FITS * STEP < 0.8 * DEADLINE  # used, but not exceeded
    if privacy:  # charged before the training, so for all steps
        charges = read_ledger(state / "privacy.sqlite").charges
        assert [charge.mechanism.steps for charge in charges] == [STEPS] * 2


def test_a_node_with_enough_time_takes_all_steps(
    trial: Callable[[list[str]], tuple[Watched, list[Any], Path]],
) -> None:
    patient = ["federation.deadline=600", "federation.partial=true", "local.steps=3"]
    watched, rounds, _ = trial(patient)
    assert watched.limits == [Limit(seconds=480.0)] * 2
    assert watched.steps == [3, 3]
    assert [line["clients"] for line in rounds] == [1, 1]


@pytest.mark.parametrize("more", [[], ["federation.deadline=600"]], ids=["none", "deadline"])
def test_without_partial_work_nothing_stops(
    trial: Callable[[list[str]], tuple[Watched, list[Any], Path]], more: list[str]
) -> None:
    watched, _, _ = trial([*more, "local.steps=3"])
    assert watched.limits == [None, None]
    assert watched.steps == [0, 0]  # sent with partial work only


def test_a_simulated_device_stops_by_its_steps(
    quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    devices = ["devices.step_seconds=1", "devices.spread=0.5", "local.steps=9"]
    experiment = quick(*devices, "federation.deadline=6", "federation.partial=true")
    folder = tmp_path / "run"
    prepare(experiment, folder)
    shared = node_config(folder, experiment)
    nodes = [{"partition-id": client, **shared} for client in range(3)]
    watched = Watched()
    run_local(server_app, watched, nodes, {"experiment": experiment.to_toml(), "out": str(folder)})
    # Messages take no time here: the most steps that end before the deadline.
    speeds = [device_of(experiment, client).step_seconds for client in range(3)]
    fits = [max(k for k in range(1, 99) if k == 1 or k * speed < 6) for speed in speeds]
    assert watched.limits == [Limit([most]) for most in fits] * 2
    assert watched.steps == [min(9, most) for most in fits] * 2
    assert min(watched.steps) < 9
