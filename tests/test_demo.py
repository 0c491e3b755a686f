"""The newcomer's first run learns something."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeft.experiment.config import Experiment
from simulations.simulation import prepare, simulate


@pytest.mark.long
def test_the_demo_learns_on_real_weights(tmp_path: Path) -> None:
    path = Path(__file__).resolve().parents[1] / "simulations" / "demo.toml"
    experiment = Experiment.read(path, ["federation.rounds=3", "engine.threads=1"])
    folder, _ = prepare(experiment, tmp_path / "demo")
    result = simulate(folder, experiment)
    assert result["score"] > 0.7, "the classes are balanced: guessing gives 0.5"
    losses = [line["loss"] for line in folder.rounds()]
    assert losses[-1] < losses[0]
