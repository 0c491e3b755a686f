"""A cohort trained in one batch learns what its clients learn alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.simulation import prepare, simulate

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
EXACT = ("engine.dtype=float64", "wire.up=float64", "wire.down=float64")
RAGGED = ("federation.clients=10", "partition.kind=quantity", "partition.alpha=1")


def steps_differ(folder: RunFolder, batch: int = 8) -> bool:
    clients = json.loads((folder.path / "partition.json").read_text())["clients"]
    return len({-(-len(rows) // batch) for rows in clients}) > 1


@pytest.mark.parametrize(
    "local", [(), ("local.optimizer=sgd",), ("local.optimizer=sgd", "local.perturbations=5")]
)
def test_a_whole_run_in_cohorts_equals_single_clients(
    quick: Quick, run: Run, final_vector: Final, local: tuple[str, ...]
) -> None:
    settings = (*EXACT, *RAGGED, *local)
    alone, _ = run(quick(*settings, "engine.cohort=1"), "alone")
    assert steps_differ(alone)
    for cohort in (3, 10):
        together, _ = run(quick(*settings, f"engine.cohort={cohort}"), f"together-{cohort}")
        one, other = final_vector(alone.path), final_vector(together.path)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-9)
        for line, twin in zip(alone.rounds(), together.rounds(), strict=True):
            assert line["score"] == twin["score"]
            assert line["loss"] == pytest.approx(twin["loss"], abs=1e-9)
            # The handshake's may differ: it carries the settings, "cohort = 10" among them.
            assert [line["bytes"][way] for way in ("up", "down")] == [
                twin["bytes"][way] for way in ("up", "down")
            ]


def test_one_round_of_sgd_in_float32_equals_single_clients(
    quick: Quick, run: Run, final_vector: Final
) -> None:
    settings = (*RAGGED, "local.optimizer=sgd", "local.lr=0.1", "federation.rounds=1")
    alone, _ = run(quick(*settings, "engine.cohort=1"), "alone")
    together, _ = run(quick(*settings, "engine.cohort=10"), "together")
    one, other = final_vector(alone.path), final_vector(together.path)
    assert one.dtype == np.float32
    assert np.abs(one - initial(alone)).max() > 1e-3  # it did train
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


def initial(folder: RunFolder) -> np.ndarray:
    from fedpeft.runtime import runtime_of

    experiment = Experiment.read(folder.path / "experiment.toml")
    runtime = runtime_of(experiment)
    return runtime.parameters.initial(runtime.experiment.seed)


def test_the_automatic_cohort_is_recorded_and_kept(
    quick: Quick, run: Run, final_vector: Final, tmp_path: Path
) -> None:
    """Its bits are those of the cohort it says, also of a run that goes on where more would fit."""
    alone, three, automatic = (
        run(quick(*RAGGED, f"engine.cohort={cohort}"), f"run-{cohort}")[0] for cohort in (1, 3, 0)
    )
    chosen = int(automatic.pinned()["cohort"])
    assert chosen == 10
    results = [json.loads((each.path / "result.json").read_text()) for each in (alone, automatic)]
    assert [result["cohort"] for result in results] == [1, 10]
    same, _ = run(quick(*RAGGED, f"engine.cohort={chosen}"), "same")
    ends = [final_vector(each.path).tobytes() for each in (alone, three, automatic, same)]
    assert ends[2] == ends[3]
    assert len(set(ends)) == 3  # so the test can tell cohorts apart
    experiment = quick(*RAGGED)
    folder, _ = prepare(experiment, tmp_path / "begun")
    identity = folder.path / "identity.json"
    identity.write_text(json.dumps({**folder.pinned(), "cohort": "3"}))
    folder, _ = prepare(experiment, tmp_path / "begun", resume=True)
    simulate(folder, experiment)
    assert final_vector(folder.path).tobytes() == ends[1]


@pytest.mark.parametrize("method", ["slash", "jr_warp", "lora"])
def test_cohorts_work_for_methods_with_and_without_projections(
    quick: Quick, run: Run, final_vector: Final, method: str
) -> None:
    toml = quick(*EXACT, *RAGGED, "federation.rounds=1", "engine.cohort=1").to_toml()
    alone = Experiment.load(toml, [f"method.name={method}"])
    together = Experiment.load(alone.to_toml(), ["engine.cohort=3"])
    one = final_vector(run(alone, "alone")[0].path)
    other = final_vector(run(together, "together")[0].path)
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-10)
