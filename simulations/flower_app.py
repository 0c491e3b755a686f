"""The apps that ``flwr run .`` starts in a checkout: a run in Flower's own simulation.

They are ``server.app`` and ``clients.app`` with what ``fedpeft simulate`` prepares for them: the
run folder and each node's config. Keys of the run config (``flwr run -c``):

- ``experiment``: settings as TOML. ``federation.clients`` must equal the number of simulated
  nodes, which is 2 unless ``flwr run --federation-config "num-supernodes=N"`` says otherwise.
- ``out``: run folder; empty = ``runs/flower-RUN_ID``.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from clients.app import app as client_app
from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from server.app import app as server_app
from simulations.simulation import node_config, prepare
from simulations.tracking import tracked

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Prepare the run folder and run the federation in it."""
    experiment, out = _settings(context)
    folder, _ = prepare(experiment, out)
    context.run_config.update({"experiment": experiment.to_toml(), "out": str(out)})
    with folder.locked(), tracked(folder, experiment):
        server_app(grid, context)


class _Client(ClientApp):
    """The client app; Flower configures its node with a partition's number and no more."""

    def __call__(self, message: Message, context: Context) -> Message:
        experiment, out = _settings(context)
        context.node_config.update(node_config(out, experiment))
        return client_app(message, context)


client = _Client()


def _settings(context: Context) -> tuple[Experiment, Path]:
    """Return the experiment and the run folder of a run config."""
    config = context.run_config
    out = str(config["out"]) or f"runs/flower-{context.run_id}"
    return planned(Experiment.load(str(config["experiment"]))), Path(out)
