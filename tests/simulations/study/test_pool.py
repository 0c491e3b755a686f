"""The processes that run cells: what they share, and what happens when one dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dying import dying_processes
from small_studies import BASE, GRID

from deployment.processes import command_line, descendants
from fedpeft.backbones.tiny import tiny_backbone
from simulations.study.cell_process import Job, Outcome
from simulations.study.cells import Cell
from simulations.study.file import parse
from simulations.study.folder import StudyFolder
from simulations.study.plan import Plan
from simulations.study.pool import run_jobs

pytestmark = pytest.mark.long
FolderOf = Callable[..., StudyFolder]


def jobs_of(text: str, root: Path) -> list[Job]:
    cells: list[Cell] = Plan(parse(text)).cells({})
    return [
        Job(c.name, c.experiment.to_toml(), str(root / c.name), c.experiment.backbone)
        for c in cells
    ]


def workers() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if "cell_process" in command_line(pid)]


def test_jobs_of_one_backbone_go_to_one_process(tmp_path: Path) -> None:
    """Its jobs come first, whatever the order of the study."""
    other = tmp_path / "copy"
    for part in tiny_backbone():
        part.save_pretrained(other)
    text = GRID.replace("seed = [0, 1]", f'seed = [0]\nbackbone = ["tiny", "{other}"]')
    jobs = jobs_of(text, tmp_path / "cells")
    order: list[str] = []
    done = list(run_jobs(jobs, lambda job: order.append(job.name), 1, tmp_path / "log"))
    assert [outcome for _, outcome in done] == [Outcome(name) for name in order]
    backbones = [job.backbone for name in order for job in jobs if job.name == name]
    assert backbones == ["tiny", "tiny", str(other), str(other)]
    assert not workers()


def test_a_process_that_dies_fails_its_job_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(GRID, tmp_path)
    victim = jobs[0]
    dying = dying_processes(tmp_path / "dying", Path(victim.folder), rounds=1)
    for name, value in dying.items():
        monkeypatch.setenv(name, value)
    done = dict(run_jobs(jobs, lambda job: None, 1, tmp_path / "log"))
    assert "ended by signal 9" in done[victim].reason
    assert [done[job].reason for job in jobs[1:]] == [""] * 3
    assert not workers()


def test_output_of_a_library_is_not_a_reply_and_a_traceback_is_kept(tmp_path: Path) -> None:
    """The experiment names a task folder that is a file of zeros: an error of any kind."""
    bad = tmp_path / "train.parquet"
    bad.write_bytes(b"\0" * 100)
    text = BASE + (
        '[axes]\ntask = [{ label = "bad", task.name = "custom", task.train = "FILE", '
        'task.labels = ["a", "b"], method.name = "linear" }, { label = "good", '
        'method.name = "bitfit" }]'
    ).replace("FILE", str(bad))
    done = [outcome for _, outcome in run_jobs(jobs_of(text, tmp_path), print, 2, tmp_path / "log")]
    reasons = {outcome.name.partition("-")[0]: outcome.reason for outcome in done}
    assert "cannot be read as Parquet" in reasons["bad"]
    assert reasons["good"] == ""
