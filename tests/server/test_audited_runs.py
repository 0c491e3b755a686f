"""Canary clients in whole runs on tiny: what the audit reads is what a real run releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from messaging import changed, vector_of
from safetensors.numpy import load_file
from scipy.linalg import toeplitz
from scipy.stats import chi2

from clients.app import app as client_app
from fedpeft.attacks.canary_clients import Watched, scores
from fedpeft.experiment.config import Experiment
from fedpeft.wire.messages import RECORD
from server.app import app as server_app
from server.privacy.central_privacy import central_plan
from server.privacy.schedule import Schedule
from simulations.engines.grid import NodeConfig
from simulations.engines.local import run_local
from simulations.simulation import prepare

Quick = Callable[..., Experiment]
#: 40 clients, 8 a round: two turns, 5 rounds apart.
CLIENTS, ROUNDS = 40, 10
SETTINGS = (
    f"federation.clients={CLIENTS}", "federation.per_round=8", f"federation.rounds={ROUNDS}",
    "local.lr=1e-9", "privacy.unit=client", "privacy.noise_multiplier=0.1", "privacy.client_clip=2",
    "privacy.reproducible=true", "engine.dtype=float64", "task.train_limit=200",
)  # fmt: skip


class Canaries(ClientApp):
    """The real client app; included clients add an update of ten clips along their coordinate.

    Attributes:
        starts: the vector [P] of each round; training at a tiny learning rate hardly changes it.
    """

    def __init__(self, included: np.ndarray) -> None:
        super().__init__()
        self.included = included
        self.starts: dict[int, np.ndarray] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if message.metadata.message_type != "train":
            return reply
        client = int(context.node_config["partition-id"])
        vector = vector_of(reply).copy()
        self.starts[int(message.content[RECORD]["r"])] = vector.astype(float)
        vector[client] += 20 * self.included[client]
        return changed(reply, v=vector.tobytes())


@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_the_canaries_of_a_whole_run_are_found_and_its_noise_is_the_claimed_one(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]], tmp_path: Path, kind: str
) -> None:
    experiment = quick(*SETTINGS, f"privacy.mechanism={kind}")
    included = np.arange(CLIENTS) % 2 == 0
    app, nodes = Canaries(included), node_configs(experiment)
    folder, _ = prepare(experiment, tmp_path / "again")
    settings = {"experiment": experiment.to_toml(), "out": str(folder.path)}
    run_local(server_app, app, nodes, settings)

    last = load_file(folder.path / "vector.safetensors")["vector"].astype(float)
    vectors = np.stack([*(app.starts[number] for number in range(1, ROUNDS + 1)), last])
    released = np.diff(vectors, axis=0) * 8 / 2  # sums, in clips
    turns = np.zeros((ROUNDS, CLIENTS), bool)
    order = Schedule(CLIENTS, 8, 5, experiment.seed)
    for number in range(1, ROUNDS + 1):
        turns[number - 1, order.of(number)] = True
    plan = central_plan(experiment)
    assert plan.factorization
    found = scores(Watched(released[:, :CLIENTS], turns), plan)
    shown = ~np.isnan(found)
    middle = plan.factorization.sensitivity / 2
    assert shown.sum() > 5 and ((found > middle) == included)[shown].all()
    # Coordinates of no canary are noise: C times it is independent, of the claimed deviation.
    column = plan.factorization.matrix.column(ROUNDS)
    z = toeplitz(column, np.zeros(ROUNDS)) @ released[:, CLIENTS:]
    z /= plan.mechanism.noise_multiplier * plan.factorization.sensitivity
    low, high = chi2.ppf([1e-6, 1 - 1e-6], z.size)
    assert low < (z**2).sum() < high
