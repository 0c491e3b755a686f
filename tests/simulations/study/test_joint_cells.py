"""Cells that share passes: what may share them, and each cell's own record, failure and resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dying import dying_processes
from safetensors.numpy import load_file
from small_studies import BASE, Watched, here

from fedpeft.cli import main
from fedpeft.experiment.config import Experiment
from server.runfolder import RunFolder
from simulations.study.cell_process import Job, Outcome, next_jobs, run_job, run_together
from simulations.study.cells import Cell
from simulations.study.choices import Choices
from simulations.study.execution import run_study
from simulations.study.file import parse
from simulations.study.folder import StudyFolder
from simulations.study.joining import group_of
from simulations.study.plan import Plan
from simulations.study.pool import run_jobs

Quick = Callable[..., Experiment]
EXACT = """
engine.dtype = "float64"
wire.up = "float64"
wire.down = "float64"
"""
AXES = """
[axes]
seed = [0, 1]
local.lr = [0.01, 0.05]
"""
METHODS = {
    "slash": 'method.name = "slash"\nmethod.d = 16\n',
    "private lora": (
        'method.name = "lora"\nprivacy.unit = "example"\nprivacy.reproducible = true\n'
        "privacy.noise_multiplier = 1.0\n"
    ),
}
RECORDED = "score", "clients", "failed", "epsilon"  # of each round


def study_of(method: str, axes: str = AXES) -> str:
    return BASE + EXACT + METHODS[method] + axes


def jobs_of(text: str, root: Path) -> list[Job]:
    cells: list[Cell] = Plan(parse(text)).cells({})
    return [
        Job(
            cell.name,
            cell.experiment.to_toml(),
            str(root / cell.name),
            cell.experiment.backbone,
            group_of(cell.experiment),
        )
        for cell in cells
    ]


def run_all(jobs: list[Job]) -> dict[str, Outcome]:
    outcomes: list[Outcome] = []
    assert run_together(jobs, len(jobs), outcomes.append) >= 2  # a step of each round at least
    return {outcome.name: outcome for outcome in outcomes}


def assert_same_run(one: Path, other: Path) -> None:
    vectors = [load_file(path / "vector.safetensors")["vector"] for path in (one, other)]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=1e-9)
    for line, twin in zip(RunFolder(one).rounds(), RunFolder(other).rounds(), strict=True):
        assert line["loss"] == (twin["loss"] and pytest.approx(twin["loss"], abs=1e-9))
        assert [line[key] for key in RECORDED] == [twin[key] for key in RECORDED]
        # Not those of the handshake, which a resumed run repeats.
        assert [line["bytes"][way] for way in ("up", "down")] == [
            twin["bytes"][way] for way in ("up", "down")
        ]


def test_cells_of_a_group_differ_in_seed_rate_initial_values_and_noise_only(quick: Quick) -> None:
    private = ("privacy.unit=example", "privacy.epsilon=8")
    one, noisy = group_of(quick()), group_of(quick(*private))
    for change in ("seed=3", "local.lr=0.5", "method.init=zeros"):
        assert group_of(quick(change)) == one
    for change in ("privacy.epsilon=2", "privacy.epsilon=4", "seed=1"):
        assert group_of(quick(*private, change)) == noisy
    different = ("method.d=12", "local.epochs=2", "backbone=minilm", "federation.clients=4")
    assert len({one, noisy, *(group_of(quick(change)) for change in different)}) == 6
    alone = (
        ("engine.kind=ray",),
        ("output.track=tensorboard",),
        ("local.perturbations=2", "local.optimizer=sgd"),
    )
    assert {group_of(quick(*changes)) for changes in alone} == {""}
    assert group_of(Experiment.load("", ["method.name=full"])) == ""
    vera = {group_of(Experiment.load("", ["method.name=vera", f"seed={seed}"])) for seed in (0, 1)}
    assert len(vera) == 2  # their projections differ


def test_a_process_takes_jobs_of_a_group_together(tmp_path: Path) -> None:
    first, *rest = jobs_of(study_of("slash"), tmp_path)
    other = Job("other", "", "", "tiny")
    pending = [first, other, *rest]
    assert next_jobs(pending, "", 3) == [first, *rest[:2]]
    assert pending == [other, rest[2]]
    assert next_jobs(pending, "tiny", 3) == [other]
    assert next_jobs(pending, "tiny", 3) == [rest[2]]
    assert not pending


def test_processes_share_the_jobs_that_wait(tmp_path: Path) -> None:
    pending = jobs_of(study_of("slash"), tmp_path)
    assert [len(next_jobs(pending, "", joint=4, count=2)) for _ in range(3)] == [2, 1, 1]


@pytest.mark.parametrize("method", METHODS)
def test_joint_cells_end_as_separate_ones(tmp_path: Path, method: str) -> None:
    text = study_of(method)
    joint, alone = jobs_of(text, tmp_path / "joint"), jobs_of(text, tmp_path / "alone")
    assert run_all(joint) == {job.name: Outcome(job.name) for job in joint}
    for job, twin in zip(joint, alone, strict=True):
        assert run_job(twin) == Outcome(twin.name)
        assert_same_run(Path(job.folder), Path(twin.folder))


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """One folder holds other files, one cell diverges in its first step."""
    text = study_of("slash", "[axes]\nseed = [0, 1, 2]\nlocal.lr = [0.01]\n")
    jobs = jobs_of(text, tmp_path / "joint")
    (diverging,) = jobs_of(
        study_of("slash", '[axes]\nlocal.lr = [1e300]\nlocal.optimizer = ["sgd"]\n'),
        tmp_path / "joint",
    )
    used = Path(jobs[1].folder)
    used.mkdir(parents=True)
    (used / "notes.txt").touch()
    outcomes = run_all([*jobs, diverging])
    assert "is not empty" in outcomes[jobs[1].name].reason
    assert "82 of 82 numbers are NaN or infinite" in outcomes[diverging.name].reason
    for index in (0, 2):
        assert outcomes[jobs[index].name] == Outcome(jobs[index].name)
        twin = jobs_of(text, tmp_path / "alone")[index]
        run_job(twin)
        assert_same_run(Path(jobs[index].folder), Path(twin.folder))


@pytest.mark.long
def test_joint_cells_killed_and_resumed_end_as_separate_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = study_of("slash", "[axes]\nseed = [0, 1]\n").replace("rounds = 2", "rounds = 4")
    jobs, alone = jobs_of(text, tmp_path / "joint"), jobs_of(text, tmp_path / "alone")
    # They keep step: in the second round of one, the other has written its first.
    dying = dying_processes(tmp_path / "dying", Path(jobs[1].folder), rounds=2)
    for name, value in dying.items():
        monkeypatch.setenv(name, value)
    outcomes = dict(run_jobs(jobs, lambda job: None, 1, tmp_path / "log", joint=2))
    assert all((Path(job.folder) / "rounds.jsonl").exists() for job in jobs)
    assert all("ended by signal 9" in outcomes[job].reason for job in jobs)
    assert not any((Path(job.folder) / "result.json").exists() for job in jobs)
    run_all(jobs)
    for job, twin in zip(jobs, alone, strict=True):
        run_job(twin)
        assert_same_run(Path(job.folder), Path(twin.folder))


def rows_of(folder: Path) -> pd.DataFrame:
    """Return a study's table without its times and the digests of bits."""
    table = pd.read_csv(folder / "table.csv")
    return table.drop(columns=[name for name in table if "seconds" in name or name == "vector"])


@pytest.mark.long
def test_joint_search_and_run_have_the_table_of_separate_runs(tmp_path: Path) -> None:
    axes = "[axes]\nseed = [0, 1]\nmethod.d = [12, 16]\n"
    search = "[search]\nover.local.lr = [0.01, 0.1]\nset.federation.rounds = 1\n"
    text = study_of("slash", axes + search).replace("method.d = 16\n[axes]", "[axes]")
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(text)
    plan = Plan(parse(text), (), Choices())
    alone = StudyFolder.create(tmp_path / "alone", text, False, choices=plan.choices)
    run_study(alone, plan, here, Watched())
    for command in (["search"], ["run", "--resume"]):
        main(["study", *command, str(file), "--out", str(out), "--joint", "2"])
    best = [json.loads((folder / "best.json").read_text()) for folder in (out, alone.path)]
    assert best[0] == best[1]
    pd.testing.assert_frame_equal(rows_of(out), rows_of(alone.path), rtol=0, atol=1e-9)
