"""Updates of clients that did different numbers of local steps, made comparable (FedNova)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.nested import is_small
from server.aggregation.updates import Update, expected_steps, weight
from server.exchange.downlink import Broadcast
from server.members.nodes import Node


def normalized(
    experiment: Experiment,
    sent: Broadcast,
    updates: Mapping[int, Update],
    nodes: Mapping[int, Node],
) -> Mapping[int, Update]:
    """Return the updates, with ``federation.fednova`` each as if of the mean number of steps.

    An update is divided by its local steps and multiplied by their weighted mean over the round, so
    that clients with more steps do not draw the vector to their own optimum (Wang et al. 2020,
    equation 6, with plain averages of the steps).

    Args:
        experiment: all settings.
        sent: what the clients received.
        updates: by client.
        nodes: of these clients, with the examples that count.
    """
    if not experiment.federation.fednova or not updates:
        return updates
    local, weighting = experiment.local, experiment.federation.weighting
    # A client may not claim more steps than its examples make.
    steps = {c: min(u.steps, expected_steps(local, nodes[c].examples)) for c, u in updates.items()}
    weights = [weight(update, nodes[client], weighting) for client, update in updates.items()]
    mean = float(np.average([*steps.values()], weights=weights))
    return {
        c: update.scaled(sent.to(small=is_small(experiment, c)).received, mean / steps[c])
        for c, update in updates.items()
    }
