"""Strategies: Flower's that average, and our robust ones; with their memory for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.robust import ROBUST
from server.aggregation.robust import CENTER, robust_step

WEIGHT = "weight"
VECTOR = "vector"
#: Attributes that Flower's strategies keep from round to round, besides the current arrays.
_MEMORY = ("m_t", "v_t", "momentum_vector")


def next_vector(
    experiment: Experiment,
    number: int,
    current: np.ndarray,
    updates: Sequence[tuple[np.ndarray, float]],
    memory: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the next task vector [P] by ``federation.strategy``, and the strategy's memory.

    Args:
        experiment: all settings.
        number: of the round, from 1.
        current: the task vector [P] the clients started from.
        updates: (validated vector [P], weight) of each client, in client order; with central
            privacy a single one for all clients. Robust strategies ignore weights.
        memory: of the strategy after the last round, from the checkpoint; other names in it are
            ignored.
    """
    if not updates:
        return current, {name: memory[name] for name in (*_MEMORY, CENTER) if name in memory}
    if experiment.federation.strategy in ROBUST:
        changes = np.stack([vector for vector, _ in updates]).astype(np.float64) - current
        change, kept = robust_step(experiment, number, changes, memory)
        return (current + change).astype(current.dtype), kept
    strategy = _averaging(experiment.federation)
    for name in memory.keys() & set(_MEMORY):
        array = memory[name]
        setattr(strategy, name, [array] if name == "momentum_vector" else {VECTOR: array})
    return _move(strategy, number, current, mean(updates)), _memory(strategy)


def _averaging(federation: FederationSection) -> FedAvg:
    """Return the Flower strategy of ``federation.strategy``."""
    lr = federation.server_lr
    shared = {
        "min_train_nodes": 1,
        "min_available_nodes": 1,
        "weighted_by_key": WEIGHT,
        "arrayrecord_key": "arrays",
    }
    adaptive = {**shared, "eta": lr, "tau": federation.tau}
    makers = {
        # FedAvg with a server learning rate is FedAvgM without momentum.
        "fedavg": lambda: FedAvgM(**shared, server_learning_rate=lr),
        "fedavgm": lambda: FedAvgM(
            **shared, server_learning_rate=lr, server_momentum=federation.server_momentum
        ),
        "fedadam": lambda: FedAdam(**adaptive),
        "fedyogi": lambda: FedYogi(**adaptive),
        "fedadagrad": lambda: FedAdagrad(**adaptive),
    }
    return makers[federation.strategy]()


def _move(strategy: FedAvg, number: int, current: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Return the next task vector, given the mean of the clients' vectors.

    The strategies use only the mean; one message for each client takes ten times as long.
    """
    arrays = ArrayRecord({VECTOR: Array(current)})
    # Gives the strategy the current arrays. Its message is not sent, because other modules sample
    # clients and encode messages; the mean becomes the reply to it.
    [request] = strategy.configure_train(number, arrays, ConfigRecord(), _OneNode())
    content = RecordDict(
        {
            "arrays": ArrayRecord({VECTOR: Array(average)}),
            "metrics": MetricRecord({WEIGHT: 1.0}),
        }
    )
    result, _ = strategy.aggregate_train(number, [Message(content, reply_to=request)])
    return result[VECTOR].numpy().astype(current.dtype)


def _memory(strategy: FedAvg) -> dict[str, np.ndarray]:
    """Return the strategy's memory as named arrays, for the checkpoint."""
    state = {}
    for name in _MEMORY:
        value = getattr(strategy, name, None)
        if value is not None:
            state[name] = value[VECTOR] if isinstance(value, dict) else value[0]
    return state


def mean(updates: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Return the weighted mean [P], equal to the bit to that of Flower's strategies."""
    total = sum(weight for _, weight in updates)
    (first, weight), *others = updates
    result = first * (weight / total)
    for vector, weight in others:
        result += vector * (weight / total)
    return result


class _OneNode:
    """A grid with one node, which is all that ``configure_train`` needs."""

    def get_node_ids(self) -> list[int]:
        """Return the id of the node."""
        return [0]
