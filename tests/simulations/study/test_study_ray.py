"""A study's cells on Ray: the same results; an actor that dies twice over a cell fails it alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from small_studies import GRID, Watched, here

from deployment.loopback import until
from deployment.processes import command_line, descendants
from simulations.study.cell_process import Job, Outcome
from simulations.study.execution import run_study
from simulations.study.folder import StudyFolder
from simulations.study.ray import run_on_ray

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.long,
    # Ray leaves the handles of its daemons to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def an_actor() -> int:
    """Return the pid of an actor of this process; 0 while Ray rewrites its title."""
    return next((p for p in descendants(os.getpid()) if "CellActor" in command_line(p)), 0)


def test_cells_on_ray_end_in_the_same_table_also_if_an_actor_dies(tmp_path: Path) -> None:
    text = GRID.replace("rounds = 2", "rounds = 30")
    local = StudyFolder.create(tmp_path / "local", text, False)
    run_study(local, local.plan(), here, Watched())
    folder = StudyFolder.create(tmp_path / "ray", text, False)
    struck: list[str] = []

    def strike(jobs: Sequence[Job], started: object) -> Iterator[tuple[Job, Outcome]]:
        def begun(job: Job) -> None:  # the first one has ended, its actor is at work
            often = struck.count(job.name)
            if (job is jobs[1] and often < 1) or (job is jobs[2] and often < 2):
                struck.append(job.name)
                os.kill(until(an_actor, "an actor"), signal.SIGKILL)

        return run_on_ray(jobs, begun, count=1)

    watch = Watched()
    outcomes = run_study(folder, folder.plan(), strike, watch)
    assert len(struck) == 3 and [*outcomes.failed] == [struck[2]]
    assert "its actor died" in outcomes.failed[struck[2]]
    outcomes = run_study(folder, folder.plan(), partial(run_on_ray, count=2), watch)
    assert not outcomes.failed
    for name in ("table.csv", "table.parquet"):
        assert (folder.path / name).read_bytes() == (local.path / name).read_bytes()
