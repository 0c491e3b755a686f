"""Whole federations in this process, with clients that misbehave as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import RECORD
from server.app import app as server_app
from server.exchange.clock import RealClock
from server.flower import new_run
from simulations.engines.grid import NodeConfig
from simulations.engines.local import run_local
from simulations.simulation import node_config, prepare

Spoil = Callable[[Message], Message]
Federate = Callable[..., RunFolder]


class Spoiled(ClientApp):
    """The real client app, but some of its replies pass through ``spoil``, which may raise.

    Without ``client`` the replies of all are spoiled, without ``rounds`` those of every round.
    """

    def __init__(self, spoil: Spoil, kind: str, client: int | None, rounds: Sequence[int]):
        super().__init__()
        self.spoil, self.kind, self.client, self.rounds = spoil, kind, client, rounds

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        meant = (
            message.metadata.message_type == self.kind
            and self.client in (None, context.node_config["partition-id"])
            and (not self.rounds or message.content[RECORD].get("r", 0) in self.rounds)
        )
        return self.spoil(reply) if meant else reply


@dataclass
class VirtualTime:
    """Seconds that pass in waits for replies, and where a test adds to them."""

    seconds: float = 0.0

    def rest(self, begun: float, until: float) -> None:
        """Go to the end of the wait: in this process, nothing arrives during one."""
        self.seconds = until


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """Replace the clock of this machine: no client is late because the machine is slow."""
    time = VirtualTime()
    monkeypatch.setattr(RealClock, "now", lambda _: time.seconds)
    monkeypatch.setattr(RealClock, "rest", lambda _, begun, until: time.rest(begun, until))
    return time


@pytest.fixture
def node_configs(tmp_path: Path) -> Callable[..., list[NodeConfig]]:
    """Return a maker of an experiment's node configs, all clients' or those of some partitions."""

    def make(
        experiment: Experiment, partitions: Sequence[int] | None = None, out: str = "run"
    ) -> list[NodeConfig]:
        folder = tmp_path / out
        if not folder.exists():
            prepare(experiment, folder)
        shared = node_config(folder, experiment)
        nodes = range(experiment.federation.clients) if partitions is None else partitions
        return [{"partition-id": node, **shared} for node in nodes]

    return make


@pytest.fixture
def federate(tmp_path: Path, node_configs: Callable[..., list[NodeConfig]]) -> Federate:
    """Return a runner of an experiment in ``tmp_path/run``; it returns the run's folder."""

    def run(
        experiment: Experiment,
        spoil: Spoil = lambda reply: reply,
        kind: str = "train",
        client: int | None = None,
        rounds: Sequence[int] = (),
        partitions: Sequence[int] | None = None,
        resume: bool = False,
        out: str = "run",
    ) -> RunFolder:
        folder, _ = prepare(experiment, tmp_path / out, resume)
        run_local(
            server_app,
            Spoiled(spoil, kind, client, rounds),
            node_configs(experiment, partitions, out),
            {"experiment": experiment.to_toml(), "out": str(folder.path)},
        )
        return folder

    return run


@pytest.fixture
def read_lines() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a reader of a file with one JSON object a line."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def flower_run() -> int:
    """Start a run, so that messages can be made; return its id."""
    return new_run().run_id
