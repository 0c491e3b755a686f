"""Limits on what one client can add to a round, relative to the other clients of the round.

With ``federation.max_update_norm = "auto"`` an update is clipped at a multiple of the round's
median norm for its expected local steps, and its weight is multiplied by the same factor: what is
clipped to a tenth of its length has a tenth of its weight. So the further a client goes beyond the
limit, the less it moves the mean. Examples that a client claims beyond the round's upper quartile
do not count, neither as weight nor as expected steps. Norms are those of decoded updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.nested import is_small
from server.aggregation.updates import Update, expected_steps
from server.exchange.downlink import Broadcast
from server.members.nodes import Node

#: Updates are clipped at this multiple of the median. Honest clients of equal steps stay below it;
#: 2.3 % of the updates of very uneven ones do not: ``simulations/benchmarks/results/clipping.md``.
MULTIPLE = 2.0
#: Norms are compared after division by this power of the steps. They grow more slowly than the
#: steps, whose changes partly cancel, and faster than their square root, as those of noise would.
GROWTH = 0.75
_QUARTILE = 0.75


def counted(experiment: Experiment, sampled: Mapping[int, Node]) -> Mapping[int, Node]:
    """Return the clients of a round, with the examples that count."""
    if not experiment.clips_updates or not sampled:
        return sampled
    claimed = [node.examples for node in sampled.values()]
    most = int(np.quantile(claimed, _QUARTILE, method="lower"))
    return {
        client: replace(node, examples=min(node.examples, most)) for client, node in sampled.items()
    }


def clip(
    experiment: Experiment,
    sent: Broadcast,
    updates: Mapping[int, Update],
    nodes: Mapping[int, Node],
) -> tuple[Mapping[int, Update], list[int]]:
    """Return the updates of a round, those too long clipped with less weight, and their clients.

    Args:
        experiment: all settings.
        sent: what the clients received.
        updates: by client.
        nodes: of these clients, see ``counted``.
    """
    if not experiment.clips_updates:
        return updates, []
    starts = {c: sent.to(small=is_small(experiment, c)).received for c in updates}
    changes = (np.subtract(u.vector, starts[c], dtype=np.float64) for c, u in updates.items())
    norms = np.array([np.linalg.norm(change) for change in changes])
    steps = np.array([_steps(experiment, nodes[c], update) for c, update in updates.items()])
    factors = dict(zip(updates, clip_factors(norms, steps).tolist(), strict=True))
    clipped = sorted(client for client, factor in factors.items() if factor < 1)
    shorter = {
        c: replace(updates[c].scaled(starts[c], factors[c]), share=factors[c]) for c in clipped
    }
    return {**updates, **shorter}, clipped


def _steps(experiment: Experiment, node: Node, update: Update) -> int:
    """Return the steps that the length of an update is compared by; a client may claim fewer."""
    if experiment.federation.fednova:  # updates are as if of equal steps
        return 1
    return min(update.steps, expected_steps(experiment.local, node.examples))


def clip_factors(norms: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return what the updates of a round are multiplied by, at most 1 [n].

    Args:
        norms: of the updates [n].
        steps: expected of the clients [n].
    """
    scales = steps**GROWTH
    # Updates of 0 are honest where warmup begins with a learning rate of 0.
    lengths = np.sort((norms / scales)[norms > 0])
    if not len(lengths):
        return np.ones_like(norms)
    limits = MULTIPLE * lengths[(len(lengths) - 1) // 2] * scales  # of two the lower: one may lie
    return np.divide(limits, norms, out=np.ones_like(norms), where=norms > limits)
