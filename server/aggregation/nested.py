"""Updates of clients that hold only a prefix of z, made comparable with those of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedpeft.nested import held_numbers, is_small
from server.aggregation.updates import Update, weight
from server.exchange.downlink import Broadcast
from server.members.nodes import Node
from server.run import Run


def completed(
    run: Run, sent: Broadcast, updates: Mapping[int, Update], sampled: Mapping[int, Node]
) -> Mapping[int, Update]:
    """Return the updates with the numbers that small clients do not hold filled in.

    Each gets the weighted mean of the clients that hold it, so the mean over all clients is the
    mean over those, or the number that the server sent if none of them replied. To the numbers that
    a small client holds, its change is added; it counts from the vector that the other clients
    received, since a quantized downlink sends each group its own code.
    """
    experiment = run.experiment
    small = [client for client in updates if is_small(experiment, client)]
    if not small:
        return updates
    whole = [client for client in updates if client not in small]
    filled = sent.received
    if whole:
        weighting = experiment.federation.weighting
        weights = [weight(updates[client], sampled[client], weighting) for client in whole]
        vectors = np.stack([updates[client].vector for client in whole]).astype(np.float64)
        filled = np.average(vectors, axis=0, weights=weights).astype(filled.dtype)
    held = held_numbers(run.runtime.parameters, experiment, small=True)
    start, complete = sent.to(small=True).received, dict(updates)
    for client in small:
        vector = filled.copy()
        vector[held] = sent.received[held] + updates[client].vector[held] - start[held]
        complete[client] = replace(updates[client], vector=vector)
    return complete
