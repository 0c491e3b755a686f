"""What a disturbed run must have come to: the same run simulated, with those who took part."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fedpeft.config import Experiment
from server.app import app as server_app
from server.runfolder import RunFolder
from simulations.local import NodeConfig, run_local
from simulations.run import node_config, prepare

#: (round, client)
Trained = tuple[int, int]


class Absent(ClientApp):
    """The real client app, but training fails in all rounds of a client that are not named."""

    def __init__(self, trained: Collection[Trained]):
        super().__init__()
        self.trained = trained

    def __call__(self, message: Message, context: Context) -> Message:
        config, client = message.content["config"], int(context.node_config["partition-id"])
        trains = message.metadata.message_type == "train"
        if trains and (int(config["round"]), client) not in self.trained:
            raise OSError("was not there")
        return client_app(message, context)


def trained(folder: Path) -> set[Trained]:
    """Return who trained when, from a run's folder: who replied to a round and did not fail."""
    run = RunFolder(folder)
    replied = {
        (line["round"], line["client"])
        for line in run.sent()
        if line["kind"] == "train" and "up" in line
    }
    failed = {(line["round"], each["client"]) for line in run.rounds() for each in line["failed"]}
    return replied - failed


def simulated(settings: Sequence[str], folder: Path, taking_part: Collection[Trained]) -> str:
    """Return the digest of the final vector of a run in which only those named trained."""
    experiment = Experiment.load("", settings)
    prepare(experiment, folder)
    shared = node_config(folder, experiment)
    nodes: list[NodeConfig] = [{"partition-id": client, **shared} for client in range(2)]
    run_config: NodeConfig = {"experiment": experiment.to_toml(), "out": str(folder)}
    run_local(server_app, Absent(taking_part), nodes, run_config)
    return str(json.loads((folder / "result.json").read_text())["digests"]["vector"])
