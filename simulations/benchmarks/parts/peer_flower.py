"""One experiment in ordinary Flower apps: FedAvg on Flower's simulation with Ray.

Must not run as ``__main__``, where Ray's actors cannot import ``loaded``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.utils import clip_grad_norm_

from simulations.benchmarks.parts.peer_model import Classifier, Prepared


@lru_cache(maxsize=1)
def loaded(folder: Path) -> tuple[Prepared, Classifier]:
    """Return data and model, loaded once per process: Ray keeps its actors alive."""
    prepared = Prepared(folder)
    return prepared, Classifier(prepared)


def client_app(folder: Path) -> ClientApp:
    """Return the ClientApp."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        prepared, model = loaded(folder)
        client, number = int(context.node_config["partition-id"]), message.content["config"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        optimizer, losses = model.optimizer(prepared.settings["lr"]), []
        for batch in prepared.batches(client, int(number["server-round"])):
            optimizer.zero_grad()
            loss = model.loss(*batch)
            loss.backward()
            clip_grad_norm_(model.trained().values(), prepared.settings["max_grad_norm"])
            optimizer.step()
            losses.append(loss.item())
        metrics = {"loss": float(np.mean(losses)), "num-examples": prepared.examples(client)}
        arrays = ArrayRecord({name: value.detach() for name, value in model.trained().items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    return app


def server_app(folder: Path, out: Path) -> ServerApp:
    """Return the ServerApp, which saves the final task vector."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        prepared, model = loaded(folder)
        clients, rounds = prepared.settings["clients"], prepared.settings["rounds"]
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
        start = ArrayRecord({name: value.detach() for name, value in model.trained().items()})
        result = strategy.start(grid, start, num_rounds=rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
        np.save(out, model.vector())

    return app


def main(arguments: Sequence[str]) -> None:
    """Run the simulation: folder of ``peers``, path of the result, number of Ray actors."""
    folder, out, workers = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    clients = Prepared(folder).settings["clients"]
    run_simulation(
        server_app(folder, out),
        client_app(folder),
        clients,
        backend_config={
            "init_args": {"num_cpus": workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
