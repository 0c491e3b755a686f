"""Updates of different numbers of steps, made comparable, against the paper's formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from server.aggregation.fednova import normalized
from server.aggregation.updates import Update
from server.exchange.downlink import Broadcast
from server.members.nodes import Node

Quick = Callable[..., Experiment]
START = np.random.default_rng(0).normal(size=30)
CHANGES = np.random.default_rng(1).normal(size=(3, 30))
STEPS = [1, 5, 4]


def mean_change(experiment: Experiment, nodes: dict[int, Node], weights: list[float]) -> np.ndarray:
    updates = {c: Update(START + CHANGES[c], None, [], steps=STEPS[c]) for c in range(3)}
    made = normalized(experiment, Broadcast(START, b""), updates, nodes)
    changes = np.stack([update.vector - START for update in made.values()])
    return np.average(changes, axis=0, weights=weights)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_mean_is_that_of_the_paper(quick: Quick, weighting: str) -> None:
    experiment = quick("federation.fednova=true", f"federation.weighting={weighting}")
    examples = [40, 80, 60]
    nodes = {client: Node(client, count) for client, count in enumerate(examples)}
    weights = [1 / 3] * 3 if weighting == "uniform" else [count / 180 for count in examples]
    # Wang et al. 2020, equation 6: the effective steps times the mean of the normalized changes.
    effective = sum(p * steps for p, steps in zip(weights, STEPS, strict=True))
    parts = [p * c / steps for p, c, steps in zip(weights, CHANGES, STEPS, strict=True)]
    expected = effective * np.sum(parts, axis=0)
    np.testing.assert_allclose(mean_change(experiment, nodes, weights), expected, rtol=1e-9)


def test_without_it_updates_stay_as_they_are(quick: Quick) -> None:
    nodes = {client: Node(client, 40) for client in range(3)}
    found = mean_change(quick(), nodes, [1, 1, 1])
    np.testing.assert_allclose(found, CHANGES.mean(axis=0), rtol=1e-9)


def test_a_client_cannot_claim_more_steps_than_its_examples_make(quick: Quick) -> None:
    experiment = quick("federation.fednova=true")
    few = {client: Node(client, 8) for client in range(3)}  # one step in batches of 8
    found = mean_change(experiment, few, [1, 1, 1])
    np.testing.assert_allclose(found, CHANGES.mean(axis=0), rtol=1e-9)
