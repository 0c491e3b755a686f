"""Flower's strategies by name, and their memory for the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
)

from fedpeft.experiment.settings import FederationSection

WEIGHT = "weight"
VECTOR = "vector"
#: These strategies use only the mean of the updates.
_AVERAGING = (FedAvgM, FedAdagrad, FedAdam, FedYogi)
#: Attributes that Flower's strategies keep from round to round, besides the current arrays.
_MEMORY = ("m_t", "v_t", "momentum_vector")


def build_strategy(federation: FederationSection) -> FedAvg:
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
        "fedmedian": lambda: FedMedian(**shared),
        "fedtrimmedavg": lambda: FedTrimmedAvg(**shared, beta=federation.trim),
        "krum": lambda: Krum(**shared, num_malicious_nodes=federation.byzantine),
    }
    return makers[federation.strategy]()


def aggregate(
    strategy: FedAvg,
    number: int,
    current: np.ndarray,
    updates: Iterable[tuple[np.ndarray, float]],
) -> np.ndarray:
    """Return the next task vector [P].

    Args:
        strategy: see ``build_strategy``.
        number: of the round, from 1.
        current: the task vector [P] the clients started from.
        updates: (validated vector [P], weight) of each client, in client order; with central
            privacy a single one for all clients.
    """
    arrays = ArrayRecord({VECTOR: Array(current)})
    # Gives the strategy the current arrays. Its message is not sent, because other modules sample
    # clients and encode messages; the updates become replies to it.
    [request] = strategy.configure_train(number, arrays, ConfigRecord(), _OneNode())
    updates = list(updates)
    if isinstance(strategy, _AVERAGING):  # one message for each client takes ten times as long
        updates = [(mean(updates), 1.0)]
    replies = [_reply(request, vector, weight) for vector, weight in updates]
    result, _ = strategy.aggregate_train(number, replies)
    return result[VECTOR].numpy().astype(current.dtype)


def strategy_state(strategy: FedAvg) -> dict[str, np.ndarray]:
    """Return the strategy's memory as named arrays, for the checkpoint."""
    state = {}
    for name in _MEMORY:
        value = getattr(strategy, name, None)
        if value is not None:
            state[name] = value[VECTOR] if isinstance(value, dict) else value[0]
    return state


def restore_strategy(strategy: FedAvg, state: dict[str, np.ndarray]) -> None:
    """Restore a strategy's memory from the checkpoint; ignore other names in it."""
    for name in state.keys() & set(_MEMORY):
        array = state[name]
        setattr(strategy, name, [array] if name == "momentum_vector" else {VECTOR: array})


def mean(updates: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Return the weighted mean [P], equal to the bit to that of Flower's strategies."""
    total = sum(weight for _, weight in updates)
    (first, weight), *others = updates
    result = first * (weight / total)
    for vector, weight in others:
        result += vector * (weight / total)
    return result


def _reply(request: Message, vector: np.ndarray, weight: float) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({VECTOR: Array(vector)}),
            "metrics": MetricRecord({WEIGHT: weight}),
        }
    )
    return Message(content, reply_to=request)


class _OneNode:
    """A grid with one node, which is all that ``configure_train`` needs."""

    def get_node_ids(self) -> list[int]:
        """Return the id of the node."""
        return [0]
