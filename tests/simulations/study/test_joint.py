"""Cells that share passes: what may share them, and each cell's own record, failure and resume."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from small_studies import BASE

from fedpeft.experiment.config import Experiment
from fedpeft.hosting.locks import locked
from server.runfolder import RunFolder
from simulations.study.alike import alike, at_once
from simulations.study.cell_process import Job, Outcome, next_jobs, run_job, run_together
from simulations.study.cells import Cell
from simulations.study.file import parse
from simulations.study.plan import Plan

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
CLI = [sys.executable, "-c", "from fedpeft.cli import main; main()", "study"]


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
            alike(cell.experiment),
        )
        for cell in cells
    ]


def run_all(jobs: list[Job]) -> dict[str, Outcome]:
    outcomes: list[Outcome] = []
    run_together(jobs, outcomes.append)
    return {outcome.name: outcome for outcome in outcomes}


def assert_same_run(one: Path, other: Path) -> None:
    vectors = [load_file(path / "vector.safetensors")["vector"] for path in (one, other)]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=1e-9)
    for line, twin in zip(RunFolder(one).rounds(), RunFolder(other).rounds(), strict=True):
        assert line["loss"] == (twin["loss"] and pytest.approx(twin["loss"], abs=1e-9))
        assert {key: line[key] for key in ("score", "clients", "failed", "bytes", "epsilon")} == {
            key: twin[key] for key in ("score", "clients", "failed", "bytes", "epsilon")
        }


def test_alike_cells_differ_in_seed_rate_initial_values_and_noise_only(quick: Quick) -> None:
    private = ("privacy.unit=example", "privacy.epsilon=8")
    one, noisy = alike(quick()), alike(quick(*private))
    for change in ("seed=3", "local.lr=0.5", "method.init=zeros"):
        assert alike(quick(change)) == one
    for change in ("privacy.epsilon=2", "privacy.epsilon=4", "seed=1"):
        assert alike(quick(*private, change)) == noisy
    different = ("method.d=12", "local.epochs=2", "backbone=minilm", "federation.clients=4")
    assert len({one, noisy, *(alike(quick(change)) for change in different)}) == 6
    alone = (
        ("engine.kind=ray",),
        ("output.track=tensorboard",),
        ("local.perturbations=2", "local.optimizer=sgd"),
        ("method.name=linear", "federation.partial=true", "federation.deadline=5"),
    )
    assert {alike(quick(*changes)) for changes in alone} == {""}
    assert alike(Experiment.load("", ["method.name=full"])) == ""


def test_a_process_takes_alike_jobs_together(tmp_path: Path) -> None:
    first, *rest = jobs_of(study_of("slash"), tmp_path)
    other = Job("other", "", "", "tiny")
    pending = [first, other, *rest]
    assert next_jobs(pending, "", 3) == [first, *rest[:2]]
    assert pending == [other, rest[2]]
    assert next_jobs(pending, "tiny", 3) == [other]
    assert next_jobs(pending, "tiny", 3) == [rest[2]]
    assert not pending


def test_the_automatic_number_is_1_without_a_gpu(quick: Quick) -> None:
    assert at_once(0, [quick("engine.device=cpu")]) == 1
    assert at_once(3, [quick("engine.device=cpu")]) == 3


@pytest.mark.parametrize("method", METHODS)
def test_joint_cells_end_as_separate_ones(tmp_path: Path, method: str) -> None:
    text = study_of(method)
    joint, alone = jobs_of(text, tmp_path / "joint"), jobs_of(text, tmp_path / "alone")
    assert run_all(joint) == {job.name: Outcome(job.name) for job in joint}
    for job, twin in zip(joint, alone, strict=True):
        assert run_job(twin) == Outcome(twin.name)
        assert_same_run(Path(job.folder), Path(twin.folder))


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """One folder is in use, one cell diverges in its first step."""
    text = study_of("slash", "[axes]\nseed = [0, 1, 2]\nlocal.lr = [0.01]\n")
    jobs = jobs_of(text, tmp_path / "joint")
    (diverging,) = jobs_of(
        study_of("slash", '[axes]\nlocal.lr = [1e300]\nlocal.optimizer = ["sgd"]\n'),
        tmp_path / "joint",
    )
    used = Path(jobs[1].folder)
    used.mkdir(parents=True)
    with locked(used / "run.lock", "taken"):
        outcomes = run_all([*jobs, diverging])
    assert "use" in outcomes[jobs[1].name].reason
    assert outcomes[diverging.name].reason
    for index in (0, 2):
        assert outcomes[jobs[index].name] == Outcome(jobs[index].name)
        twin = jobs_of(text, tmp_path / "alone")[index]
        run_job(twin)
        assert_same_run(Path(jobs[index].folder), Path(twin.folder))


def study(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True)


def rows_of(folder: Path) -> pd.DataFrame:
    """Return a study's table without its times and the digests of bits."""
    table = pd.read_csv(folder / "table.csv")
    return table.drop(columns=[c for c in table if "seconds" in c or c == "vector"])


def assert_same_table(one: Path, other: Path) -> None:
    pd.testing.assert_frame_equal(rows_of(one), rows_of(other), rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file and the folder of its study, run one cell at a time."""
    folder = tmp_path_factory.mktemp("separate")
    file = folder / "study.toml"
    search = "[search]\nover.local.lr = [0.01, 0.1]\nset.federation.rounds = 1\n"
    text = study_of("slash", "[axes]\nseed = [0, 1]\nmethod.d = [12, 16]\n" + search)
    file.write_text(text.replace("method.d = 16\n[axes]", "[axes]"))
    assert study("run", file, "--out", folder / "out", "--joint", 1).returncode == 0
    return file, folder / "out"


@pytest.mark.slow
def test_joint_search_and_run_have_the_table_of_separate_runs(
    separate: tuple[Path, Path], tmp_path: Path
) -> None:
    file, alone = separate
    out = tmp_path / "out"
    searched = study("search", file, "--out", out, "--joint", 2)
    assert searched.returncode == 0, searched.stderr
    best = [json.loads((folder / "best.json").read_text()) for folder in (out, alone)]
    assert best[0] == best[1]
    ran = study("run", file, "--out", out, "--joint", 2, "--jobs", 2, "--resume")
    assert ran.returncode == 0, ran.stderr
    assert_same_table(out, alone)


@pytest.mark.slow
def test_joint_cells_killed_and_resumed_have_the_same_table(
    separate: tuple[Path, Path], tmp_path: Path
) -> None:
    file, alone = separate
    out = tmp_path / "out"

    def rounds_done() -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.rglob("cells/*/rounds.jsonl"))

    command = [*CLI, "run", str(file), "--out", str(out), "--joint", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not rounds_done() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resumed = study("run", file, "--out", out, "--joint", 2, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_table(out, alone)
