"""The delta of a node's limit: the server cannot spend more by choosing a larger one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from workers import handshake, node_context, state_folder, task_vector

from deployment.node import relay
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runtime import runtime_of
from server.flower import new_run

Quick = Callable[..., Experiment]
TASK = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0", "task.labels=bad,good"]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=2", "local.batch_size=4"]
LIMIT, DELTA, ROUNDS = 2.0, 1e-5, 6


def node(folder: Path, **limits: float) -> Path:
    """Make the state folder of a node with 20 examples and a limit of epsilon."""
    new_run()
    own = folder / "own.tsv"
    own.write_text("text\tlabel\n" + "fine\tgood\nsad\tbad\n" * 10)
    described = {"data": str(own), "labels": ("bad", "good"), "partition": None}
    limits = {"max_epsilon": LIMIT, "examples": 20, **limits}
    return state_folder(folder / "state", **described, **limits)


def run(state: Path, experiment: Experiment) -> list[str]:
    """Train all rounds of a run; return the reasons of refusals."""
    context = node_context(state)
    replies = [relay.app(handshake(experiment), context)]
    start = runtime_of(experiment).parameters.initial(0)
    for number in range(1, ROUNDS + 1):
        replies.append(relay.app(task_vector("train", experiment, start, number), context))
    return [str(reply.error.reason) for reply in replies if reply.has_error()]


def epsilon(state: Path, delta: float) -> float:
    """Return the epsilon that a node has spent at a delta."""
    return spent(read_ledger(state / "privacy.sqlite").mechanisms("example"), delta).epsilon


def test_two_runs_with_different_deltas_stay_within_the_limit_at_the_nodes_delta(
    tmp_path: Path, quick: Quick
) -> None:
    state, rounds = node(tmp_path, delta=DELTA), f"federation.rounds={ROUNDS}"
    for delta in ("0.049", "1e-7"):
        refused = run(state, quick(*TASK, *PRIVATE, rounds, f"privacy.delta={delta}"))
        assert refused[0].startswith("BudgetSpent: this node has spent epsilon ")
        assert "delta 1e-05" in refused[0] and "above the budget of 2" in refused[0]
    assert 1 < epsilon(state, DELTA) <= LIMIT


def test_the_default_delta_follows_from_the_number_of_examples_that_is_shown(
    tmp_path: Path, quick: Quick
) -> None:
    state, rounds = node(tmp_path, max_epsilon=0.5), f"federation.rounds={ROUNDS}"
    refused = run(state, quick(*TASK, *PRIVATE, rounds, "privacy.delta=0.049"))
    assert f"delta {20**-1.1:g}" in refused[0]
    assert epsilon(state, 20**-1.1) <= 0.5


@pytest.mark.parametrize("delta", ["0.049", "1e-9"])
def test_one_round_is_judged_at_the_nodes_delta(tmp_path: Path, quick: Quick, delta: str) -> None:
    state = node(tmp_path, delta=1e-6)
    experiment = quick(*TASK, *PRIVATE, f"privacy.delta={delta}", "privacy.noise_multiplier=0.5")
    reply = relay.app(handshake(experiment), node_context(state))
    assert reply.error.reason.startswith("Refusal: one round spends epsilon ")
    assert "(delta 1e-06), and this node's limit is 2" in reply.error.reason
