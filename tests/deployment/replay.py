"""The expected result of a disturbed run: a simulation in which the same clients train."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from messaging import content_of

from clients.app import app as client_app
from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import Request
from server.app import app as server_app
from simulations.engines.grid import NodeConfig
from simulations.engines.local import run_local
from simulations.simulation import node_config, prepare

#: (round, client)
Trained = tuple[int, int]


class Absent(ClientApp):
    """The real client app, but training fails except in the given (round, client) pairs.

    All clients take part in the start.
    """

    def __init__(self, trained: Collection[Trained]):
        super().__init__()
        self.trained = trained

    def __call__(self, message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        trains = message.metadata.message_type == "train"
        number = content_of(message, Request).round if trains else 0
        if number and (number, client) not in self.trained:
            raise OSError("was not there")
        return client_app(message, context)


def trained(folder: Path) -> set[Trained]:
    """Return the (round, client) pairs that replied without failing, from a run's folder."""
    run = RunFolder(folder)
    replied = {
        (line["round"], line["client"])
        for line in run.sent()
        if line["kind"] == "train" and "up" in line
    }
    failed = {
        (line["round"], failure["client"]) for line in run.rounds() for failure in line["failed"]
    }
    return replied - failed


def simulated(settings: Sequence[str], folder: Path, taking_part: Collection[Trained]) -> str:
    """Return the digest of the final vector of a run in which only the given pairs train."""
    experiment = planned(Experiment.load("", settings))
    prepare(experiment, folder)
    shared = node_config(folder, experiment)
    clients = range(experiment.federation.clients)
    nodes: list[NodeConfig] = [{"partition-id": client, **shared} for client in clients]
    run_config: NodeConfig = {"experiment": experiment.to_toml(), "out": str(folder)}
    run_local(server_app, Absent(taking_part), nodes, run_config)
    return str(json.loads((folder / "result.json").read_text())["digests"]["vector"])
