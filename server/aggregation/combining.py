"""The next task vector, from the updates of a round's clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpeft.errors import RunFailed
from fedpeft.runs.checkpoints import check_finite
from fedpeft.wire import slopes
from server.aggregation.strategies import next_vector
from server.aggregation.updates import Update, weight
from server.exchange.downlink import take_slopes
from server.members.nodes import Node
from server.run import Run
from server.state import ServerState


def combine(
    run: Run,
    state: ServerState,
    received: np.ndarray,
    updates: Mapping[int, Update],
    sampled: Mapping[int, Node],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the next task vector [P] and the strategy's memory, from updates in client order.

    The updates are changes of the vector that the clients ``received``; the next vector is the
    server's own, changed by what the strategy makes of them. The error of a downlink's codec thus
    ends with its round.

    Raises:
        RunFailed: see ``check_finite``.
    """
    if run.experiment.wire.down == slopes.DOWN:
        return _combine_slopes(run, state, updates, sampled)
    number, federation = state.round + 1, run.experiment.federation
    weights = {c: weight(updates[c], sampled[c], federation.weighting) for c in updates}
    weighted = [(updates[client].vector, weights[client]) for client in updates]
    if state.central:  # the strategy works on what may be released: a mean with noise
        mean = state.central.mean_update([vector - received for vector, _ in weighted])
        weighted = [((received + mean).astype(received.dtype), 1.0)]
    if not weighted:  # all sampled clients have spent their budgets
        _, memory = next_vector(run.experiment, number, received, (), state.memory)
        return state.vector, memory
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        vector, memory = next_vector(run.experiment, number, received, weighted, state.memory)
        if not np.array_equal(received, state.vector):  # strategies move with their start
            vector = vector + (state.vector - received)
    check_finite(run.runtime, number, vector, memory)
    return vector, memory


def _combine_slopes(
    run: Run, state: ServerState, updates: Mapping[int, Update], sampled: Mapping[int, Node]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the next task vector [P] and the memory, see ``combine``, from clients' slopes.

    The strategy combines each slope, and the server takes the steps that clients will repeat.
    """
    number, federation, local = state.round + 1, run.experiment.federation, run.experiment.local
    weighted = [
        (update.slopes.ravel(), weight(update, sampled[client], federation.weighting))
        for client, update in updates.items()
        if update.slopes is not None
    ]
    still = np.zeros_like(weighted[0][0])
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        combined, _ = next_vector(run.experiment, number, still, weighted, {})
    combined = combined.reshape(local.steps, local.perturbations)
    try:
        vector, memory = take_slopes(run.runtime, number, state.vector, combined)
    except ValueError as error:
        raise RunFailed(
            f"round {number}: {error} in the combined slopes or after their steps; "
            f"federation.max_update_norm limits what a client can add"
        ) from None
    check_finite(run.runtime, number, vector, memory)
    return vector, memory
