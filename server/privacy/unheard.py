"""Privacy that clients may have spent whose replies are missing or invalid.

A client charges its ledger before it trains, and tells what it has spent in its reply. Of a client
that may have trained without a valid reply, see ``FailureKind.may_have_trained``, the server
assumes the most: that it trained in every round so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import Unit
from fedpeft.privacy.plan import Plan, client_plan, example_plan
from fedpeft.privacy.statement import Composition, read_statement
from server.members.nodes import Node


def unheard(experiment: Experiment, number: int, clients: Iterable[Node]) -> list[dict[str, Any]]:
    """Return the largest statements of clients without a valid reply in round ``number``."""
    privacy = experiment.privacy
    statements = []
    # Clients with as many examples have the same statement.
    for examples in sorted({node.examples for node in clients}):
        if privacy.examples:
            statements += _statement(experiment, number, "example", examples)
        if privacy.charges_clients:
            statements += _statement(experiment, number, "client", examples)
    return statements


def _statement(
    experiment: Experiment, number: int, unit: Unit, examples: int
) -> list[dict[str, Any]]:
    """Return the statement after the most of ``number`` rounds that the client's budget allows."""
    try:
        plan = _plan(experiment, unit, examples)
    except UserError:  # the client cannot train with its number of examples, so it spends nothing
        return []
    for rounds in range(number, 0, -1):
        spent = replace(plan.mechanism, steps=rounds * plan.mechanism.steps)
        composition = Composition((spent,), experiment.privacy.reproducible)
        try:
            return [read_statement(composition.to_bytes(), unit, experiment, examples)]
        except ValueError:  # above the budget, so its ledger refused the round
            continue
    return []


def _plan(experiment: Experiment, unit: Unit, examples: int) -> Plan:
    return example_plan(experiment, examples) if unit == "example" else client_plan(experiment)
