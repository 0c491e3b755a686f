"""Strategies as fedpeft uses them, against the formulas of their papers.

The adaptive ones follow Reddi et al. 2021 (arXiv 2003.00295), algorithm 2, with
beta_1 = 0.9, beta_2 = 0.99 and v before the first round = 0 (the paper: tau^2 or more). Flower's
FedAdam also scales the step by Adam's bias correction (Kingma & Ba 2015), as if one round more
had passed; the test says so in its own formula.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.federation import Strategy
from fedpeft.runs.checkpoints import Checkpoint
from fedpeft.runs.folder import RunFolder
from server.aggregation.strategies import mean, next_vector
from server.aggregation.updates import Update, weight
from server.members.nodes import Node

Quick = Callable[..., Experiment]
STRATEGIES = get_args(Strategy)
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")
BETA1, BETA2 = 0.9, 0.99

pytestmark = pytest.mark.usefixtures("flower_run")


class Steps:
    """Rounds of a strategy: each starts with the memory of the round before."""

    def __init__(self, quick: Quick, *overrides: str):
        overrides = ("clients=6", *overrides)  # enough for most strategies
        self.experiment = quick(*(f"federation.{override}" for override in overrides))
        self.memory: dict[str, np.ndarray] = {}

    def __call__(
        self, number: int, current: np.ndarray, vectors: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """One round's aggregation of the rows of ``vectors`` [K, P]."""
        updates = [(row, float(each)) for row, each in zip(vectors, weights, strict=True)]
        new, self.memory = next_vector(self.experiment, number, current, updates, self.memory)
        return new


def draw(seed: int, clients: int = 5, size: int = 7, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, size)).astype(dtype)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_strategy_gives_a_finite_vector_of_the_same_kind(
    quick: Quick, name: str, dtype: str
) -> None:
    strategy = Steps(quick, f"strategy={name}")
    current, vectors = draw(0, dtype=dtype)[0], draw(1, dtype=dtype)
    new = strategy(1, current, vectors, np.ones(5))
    assert new.shape == current.shape
    assert new.dtype == current.dtype
    assert np.isfinite(new).all()
    assert not np.array_equal(new, current)


@pytest.mark.parametrize("name", STRATEGIES)
def test_unchanged_updates_leave_the_vector_unchanged(quick: Quick, name: str) -> None:
    strategy = Steps(quick, f"strategy={name}")
    current = draw(0)[0]
    assert np.array_equal(strategy(1, current, np.stack([current] * 4), np.ones(4)), current)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_is_flowers_own_to_the_bit(dtype: str) -> None:
    """``aggregate`` gives the averaging strategies one mean; alone they would make the same."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    vectors, weights = draw(3, 9, 50, dtype), np.random.default_rng(4).uniform(1, 90, 9)
    records = [
        RecordDict({"a": ArrayRecord({"v": Array(v)}), "m": MetricRecord({"w": float(w)})})
        for v, w in zip(vectors, weights, strict=True)
    ]
    theirs = aggregate_arrayrecords(records, "w")["v"].numpy()
    ours = mean([(v, float(w)) for v, w in zip(vectors, weights, strict=True)])
    assert ours.dtype == theirs.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


def test_fedavg_is_the_mean_weighted_by_examples(quick: Quick) -> None:
    strategy = Steps(quick, "strategy=fedavg")
    vectors = np.array([[0.0, 4.0], [1.0, 0.0], [10.0, 8.0]])
    new = strategy(1, np.zeros(2), vectors, np.array([1, 2, 1]))
    assert new.tolist() == [3.0, 3.0]  # (0 + 2 * 1 + 10) / 4, (4 + 0 + 8) / 4


def test_weights_are_examples_or_one(quick: Quick) -> None:
    update, nodes = Update(np.zeros(2), None, []), [Node(1, 10), Node(2, 30)]
    assert [weight(update, node, "examples") for node in nodes] == [10.0, 30.0]
    assert [weight(update, node, "uniform") for node in nodes] == [1.0, 1.0]


def test_server_lr_scales_the_step_of_fedavg(quick: Quick) -> None:
    strategy = Steps(quick, "strategy=fedavg", "server_lr=0.25")
    current = draw(0)[0]
    for number in (1, 2):  # it remembers nothing
        vectors = draw(number)
        new = strategy(number, current, vectors, np.ones(5))
        np.testing.assert_allclose(new, current + 0.25 * (vectors.mean(0) - current), rtol=1e-12)
        current = new


def test_fedavgm_is_gradient_descent_with_momentum(quick: Quick) -> None:
    """Hsu et al. 2019 (arXiv 1909.06335): v <- beta v + delta; x <- x - lr v."""
    strategy = Steps(quick, "strategy=fedavgm", "server_lr=0.5", "server_momentum=0.8")
    current, velocity = draw(0)[0], np.zeros(7)
    for number in (1, 2, 3):
        vectors = draw(number)
        new = strategy(number, current, vectors, np.ones(5))
        velocity = 0.8 * velocity + (current - vectors.mean(0))
        np.testing.assert_allclose(new, current - 0.5 * velocity, rtol=1e-10)
        current = new


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_strategies_follow_reddi_et_al(quick: Quick, name: str) -> None:
    lr, tau = 0.05, 0.01
    strategy = Steps(quick, f"strategy={name}", f"server_lr={lr}", f"tau={tau}")
    current, mean, square = draw(0)[0], np.zeros(7), np.zeros(7)
    beta1 = 0.0 if name == "fedadagrad" else BETA1
    for number in (1, 2):
        vectors, weights = draw(number), np.array([1.0, 2, 3, 4, 5])
        new = strategy(number, current, vectors, weights)
        delta = weights @ vectors / weights.sum() - current
        mean = beta1 * mean + (1 - beta1) * delta
        if name == "fedadagrad":
            square = square + delta**2
        elif name == "fedyogi":
            square = square - (1 - BETA2) * delta**2 * np.sign(square - delta**2)
        else:
            square = BETA2 * square + (1 - BETA2) * delta**2
        size = lr
        if name == "fedadam":
            size *= np.sqrt(1 - BETA2 ** (number + 1)) / (1 - BETA1 ** (number + 1))
        expected = current + size * mean / (np.sqrt(square) + tau)
        np.testing.assert_allclose(new, expected, rtol=1e-10)
        current = new


@pytest.mark.parametrize("name", STRATEGIES)
def test_memory_survives_a_checkpoint_on_disk(quick: Quick, name: str, tmp_path: Path) -> None:
    current = draw(0, dtype="float32")[0]
    folder = RunFolder.create(tmp_path / "run", quick())
    steady, stopped, resumed = (Steps(quick, f"strategy={name}") for _ in range(3))
    first = steady(1, current, draw(1, dtype="float32"), np.ones(5))
    stopped(1, current, draw(1, dtype="float32"), np.ones(5))
    folder.save_round({"round": 1}, [], Checkpoint(1, first, stopped.memory))
    kept = folder.checkpoint()
    assert kept is not None
    resumed.memory = kept.memory
    for number in (2, 3):
        vectors = draw(number, dtype="float32")
        first = steady(number, first, vectors, np.ones(5))
        kept.vector = resumed(number, kept.vector, vectors, np.ones(5))
        assert np.array_equal(first, kept.vector)


@pytest.mark.parametrize("name", ["fedavgm", "centered_clipping", *ADAPTIVE])
def test_a_strategy_without_its_memory_gives_another_vector(quick: Quick, name: str) -> None:
    """Else the test above could not fail."""
    steady = Steps(quick, f"strategy={name}")
    first = steady(1, draw(0)[0], draw(1), np.ones(5))
    kept = steady.memory
    assert kept
    forgetful = Steps(quick, f"strategy={name}")(2, first, draw(2), np.ones(5))
    assert not np.allclose(steady(2, first, draw(2), np.ones(5)), forgetful)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_round_without_updates_keeps_vector_and_memory(quick: Quick, name: str) -> None:
    steady = Steps(quick, f"strategy={name}")
    first = steady(1, draw(0)[0], draw(1), np.ones(5))
    kept = dict(steady.memory)
    assert steady(2, first, np.empty((0, 7)), np.empty(0)) is first
    assert steady.memory == kept
