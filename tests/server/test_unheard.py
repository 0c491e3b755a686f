"""Privacy of clients whose replies did not arrive: never less than what they have spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from server.members.nodes import Node
from server.privacy.unheard import unheard
from simulations.simulation import prepare, simulate

Quick = Callable[..., Experiment]
DP = ("privacy.unit=example", "privacy.noise_multiplier=1", "local.batch_size=8")


def test_the_most_is_assumed(quick: Quick) -> None:
    experiment = quick(*DP, "federation.rounds=5")
    [first] = unheard(experiment, 1, [Node(0, 40), Node(1, 40)])
    [third] = unheard(experiment, 3, [Node(0, 40)])
    assert (first["steps"], third["steps"]) == (5, 15)
    assert first["epsilon"] < third["epsilon"]
    assert len(unheard(experiment, 1, [Node(0, 40), Node(1, 80)])) == 2
    assert unheard(quick(), 1, [Node(0, 40)]) == []
    assert unheard(experiment, 1, []) == []


def test_a_budget_is_never_exceeded(quick: Quick) -> None:
    experiment = quick(*DP[::2], "privacy.epsilon=2", "federation.rounds=5")
    sizes = [unheard(experiment, number, [Node(0, 40)])[0]["epsilon"] for number in (4, 5, 6, 9)]
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    assert sizes[3] == pytest.approx(2, rel=0.05)


def test_a_late_client_counts(quick: Quick, tmp_path: Path) -> None:
    def epsilon(name: str, *more: str) -> tuple[RunFolder, float]:
        experiment = quick(*DP, "devices.step_seconds=1", "devices.spread=1", *more)
        folder, _ = prepare(experiment, tmp_path / name)
        return folder, simulate(folder, experiment)["epsilon"]

    folder, whole = epsilon("whole")
    longest = folder.rounds()[0]["virtual"]
    assert longest is not None
    late, counted = epsilon("late", f"federation.deadline={0.9 * longest}")
    assert [len(line["late"]) for line in late.rounds()] == [1, 1]
    assert counted == pytest.approx(whole)
