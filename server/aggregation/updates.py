"""Updates: the replies of clients to a training request, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from flwr.app import Message

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.settings import LocalSection
from fedpeft.privacy.ledger import Unit
from fedpeft.privacy.statement import read_statement
from fedpeft.runtime import Runtime
from fedpeft.updates.transfer import decode_slopes, decode_up
from fedpeft.wire import slopes
from fedpeft.wire.failures import Failure
from fedpeft.wire.messages import RECORD, TrainReply, from_fields
from server.aggregation.reported import max_loss, read_float, read_int
from server.exchange.sending import refused
from server.members.nodes import Node

#: Name of the reported privacy steps in the checkpoint.
STEPS = "privacy.steps"
#: Largest root mean square change of a parameter in an update at a deployed server, unless
#: ``federation.max_update_norm`` is set. Parameters are of the order of 1; training that changes
#: them by this much in a round has diverged.
MAX_CHANGE = 1e4


@dataclass(frozen=True)
class Update:
    """A client's validated reply.

    Attributes:
        vector: the task vector [P] the client trained.
        loss: its mean training loss; None with privacy.
        statements: the privacy it spent, one statement for each unit that it protects itself.
        slopes: of its steps [steps, local.perturbations], where ``wire.down`` combines them.
        steps: local steps, at least 1.
        share: part of its client's weight with which it counts.
    """

    vector: np.ndarray
    loss: float | None
    statements: list[dict[str, Any]]
    slopes: np.ndarray | None = None
    steps: int = 1
    share: float = 1.0

    def scaled(self, start: np.ndarray, factor: float) -> Update:
        """Return the update with its change of ``start`` [P], and its slopes, times ``factor``."""
        change = np.subtract(self.vector, start, dtype=np.float64) * factor
        slopes = None if self.slopes is None else self.slopes * self.slopes.dtype.type(factor)
        return replace(self, vector=(start + change).astype(start.dtype), slopes=slopes)


def max_norm(federation: FederationSection, size: int, deployed: bool) -> float:
    """Return the largest L2 norm of an update of ``size`` numbers; infinite without a limit."""
    chosen, default = federation.max_update_norm, MAX_CHANGE * size**0.5 if deployed else np.inf
    return chosen if chosen and chosen != "auto" else default


def check_update(
    runtime: Runtime,
    number: int,
    client: int,
    reply: Message,
    start: np.ndarray,
    examples: int,
    limit: float = np.inf,
) -> Update:
    """Return the content of a reply; its content is not trusted.

    Args:
        runtime: the run's runtime.
        number: of the round, from 1.
        client: number of the client.
        reply: the client's reply.
        start: the task vector [P] the client started from, as it decoded it.
        examples: the client's number of examples, from the handshake.
        limit: the largest norm of an update, see ``max_norm``.

    Raises:
        ValueError: a wrong field, length, a NaN, a loss or an update that is
            too large.
    """
    experiment, sent = runtime.experiment, from_fields(TrainReply, reply.content.get(RECORD))
    vector = decode_up(runtime, number, client, start, sent.vector)
    if limit < np.inf:
        # float64: in float32 the norm of millions of numbers comes out too small.
        norm = float(np.linalg.norm(np.subtract(vector, start, dtype=np.float64)))
        if norm > limit:
            name = (
                "federation.max_update_norm"
                if limit == experiment.federation.max_update_norm
                else "the limit"
            )
            raise ValueError(f"update norm {norm:.4g} is above {name} = {limit:g}")
    privacy, statements = experiment.privacy, read_statements(experiment, sent, examples)
    most = expected_steps(experiment.local, examples)
    steps = read_int(vars(sent), "steps", 1, most) if experiment.federation.partial else most
    if privacy.unit != "none":
        return Update(vector, None, statements, steps=steps)
    loss = read_float(vars(sent), "loss", 0, max_loss(runtime.info.kind))
    combines = experiment.wire.down == slopes.DOWN
    measured = decode_slopes(runtime, sent.vector) if combines else None
    return Update(vector, loss, statements, measured, steps)


def read_statements(
    experiment: Experiment, sent: TrainReply, examples: int
) -> list[dict[str, Any]]:
    """Return the privacy that a client spent, one statement for each unit that it protects.

    Raises:
        ValueError: a statement is invalid.
    """
    privacy = experiment.privacy
    protected: dict[Unit, bool] = {"example": privacy.examples, "client": privacy.charges_clients}
    return [
        read_statement(getattr(sent, unit), unit, experiment, examples)
        for unit, at_client in protected.items()
        if at_client
    ]


def expected_steps(local: LocalSection, examples: int) -> int:
    """Return the steps that a client with so many examples makes in a round."""
    return local.steps or local.epochs * ceil(examples / local.batch_size)


def check_steps(
    updates: Mapping[int, Update], failed: dict[int, Failure], steps: np.ndarray
) -> tuple[dict[int, Update], np.ndarray]:
    """Refuse updates of clients that report fewer privacy steps than before.

    A privacy ledger only grows. A client that reports fewer steps lost its ledger or restored an
    old copy, so the epsilon it reports is too small.

    Args:
        updates: by client.
        failed: gets the refusals, by client.
        steps: steps reported so far, shape [clients].

    Returns:
        The other updates, and the steps reported now.
    """
    good, reported = {}, steps.copy()
    for client, update in updates.items():
        now = sum(int(statement["steps"]) for statement in update.statements)
        if now < steps[client]:
            failed[client] = refused(
                f"its privacy ledger went back from {steps[client]} steps to {now}"
            )
        else:
            reported[client], good[client] = now, update
    return good, reported


def weight(update: Update, node: Node, weighting: str) -> float:
    """Return the weight of a client's update in the average."""
    return update.share * (node.examples if weighting == "examples" else 1)


def mean_loss(
    updates: Mapping[int, Update], nodes: Mapping[int, Node], weighting: str
) -> float | None:
    """Return the weighted mean training loss of clients, or None if they do not report it."""
    losses = [update.loss for update in updates.values() if update.loss is not None]
    if not losses:
        return None
    weights = [weight(update, nodes[client], weighting) for client, update in updates.items()]
    mean = float(np.average(losses, weights=weights))
    return mean if np.isfinite(mean) else None  # JSON has no infinity
