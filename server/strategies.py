"""Flower's strategies by name, and their state for the checkpoint."""

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

from fedpeft.settings import FederationSection

WEIGHT = "weight"
VECTOR = "vector"
#: What these do with updates begins with their mean; the others look at each.
_AVERAGING = (FedAvgM, FedAdagrad, FedAdam, FedYogi)
#: What Flower's strategies remember from round to round, besides the arrays they are given.
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
    round: int,
    current: np.ndarray,
    updates: Iterable[tuple[np.ndarray, float]],
) -> np.ndarray:
    """Return the next task vector [P].

    Args:
        strategy: of ``build_strategy``.
        round: counts from 1.
        current: the task vector [P] the clients started from.
        updates: (checked vector [P], weight) of each client, in client order; with central
            privacy there is one, which stands for all.
    """
    arrays = ArrayRecord({VECTOR: Array(current)})
    # Lets the strategy remember the current arrays. The message it makes is not sent, because
    # clients are sampled and messages encoded elsewhere; the updates come as replies to it.
    [question] = strategy.configure_train(round, arrays, ConfigRecord(), _OneNode())
    updates = list(updates)
    if isinstance(strategy, _AVERAGING):  # as a message for each takes ten times as long
        updates = [(mean(updates), 1.0)]
    replies = [_reply(question, vector, weight) for vector, weight in updates]
    result, _ = strategy.aggregate_train(round, replies)
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
    """Give a strategy back its memory; names of others in the checkpoint are not looked at."""
    for name in state.keys() & set(_MEMORY):
        array = state[name]
        setattr(strategy, name, [array] if name == "momentum_vector" else {VECTOR: array})


def mean(updates: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Return the weighted mean [P], to the bit as Flower's strategies make it of replies."""
    total = sum(weight for _, weight in updates)
    (first, weight), *others = updates
    mean = first * (weight / total)
    for vector, weight in others:
        mean += vector * (weight / total)
    return mean


def _reply(question: Message, vector: np.ndarray, weight: float) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({VECTOR: Array(vector)}),
            "metrics": MetricRecord({WEIGHT: weight}),
        }
    )
    return Message(content, reply_to=question)


class _OneNode:
    """A grid with one node, all that ``configure_train`` needs to see."""

    def get_node_ids(self) -> list[int]:
        """Return the one node."""
        return [0]
