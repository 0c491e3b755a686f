"""``fedpeft study run``: the search if there is one, then the cells, then the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpeft.errors import UserError
from fedpeft.vectorfile import EXPERIMENT
from simulations.study.cells import Cell
from simulations.study.folder import Damaged, Finished, StudyFolder
from simulations.study.plan import Plan
from simulations.study.search import Best, Key, best_of
from simulations.study.table import write_table
from simulations.study.worker import Job, Outcome

Pool = Callable[[Sequence[Job], Callable[[Job], None]], Iterator[tuple[Job, Outcome]]]


class Watch(Protocol):
    """Who wants to know how a study goes on."""

    def begin(self, phase: str, cells: Sequence[Cell], finished: int) -> None:
        """Say that a phase of so many cells begins, some of which were finished before."""

    def started(self, cell: Cell) -> None:
        """Say that a cell begins, or goes on."""

    def ended(self, cell: Cell, finished: Finished | None, reason: str) -> None:
        """Say that a cell has ended: with its results, or with the reason why it has none."""

    def say(self, line: str) -> None:
        """Say something else."""


@dataclass(frozen=True)
class Outcomes:
    """What became of the cells of a phase: results by name, and reasons of those without."""

    finished: dict[str, Finished]
    failed: dict[str, str]


def run_study(folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch) -> Outcomes:
    """Run everything of a study that is not finished; write its table, also if it is interrupted.

    Returns:
        What became of the cells. Those for which the search found nothing are among the failed.
    """
    best = searched(folder, plan, pool, watch)
    cells = plan.cells(best)
    try:
        outcomes = run_cells(folder, cells, pool, watch, "cells")
    finally:
        write_table(folder.path, finished_of(folder, cells))
    lost = sorted(plan.searched - best.keys())
    failed = {", ".join(key): "no trial of the search ended with a score" for key in lost}
    return Outcomes(outcomes.finished, failed | outcomes.failed)


def searched(folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch) -> dict[Key, Best]:
    """Run the trials of a study that are not finished; return and write the best settings."""
    if not plan.trials:
        return {}
    trials = [trial.cell for trial in plan.trials]
    finished = run_cells(folder, trials, pool, watch, "search").finished
    best = best_of(plan.trials, {name: each.result["score"] for name, each in finished.items()})
    folder.save_best(plan.by, best)
    return best


def run_cells(
    folder: StudyFolder, cells: Sequence[Cell], pool: Pool, watch: Watch, phase: str
) -> Outcomes:
    """Run the cells that are not finished, on a pool; none stops the others."""
    finished, waiting = {}, []
    for cell in cells:
        if found := whole(folder, cell, watch):
            finished[cell.name] = found
        else:
            waiting.append(cell)
    watch.begin(phase, cells, len(finished))
    named = {cell.name: cell for cell in waiting}
    failed = {}
    jobs = [_job(folder, cell) for cell in waiting]
    for job, outcome in pool(jobs, lambda job: watch.started(named[job.name])):
        cell, reason = named[job.name], outcome.reason
        found = None if reason else _read(folder, cell)
        if found:
            folder.forget_failure(cell)
            finished[cell.name] = found
        else:
            reason = reason or f"no result in '{job.folder}'; do all machines share this folder?"
            folder.note_failure(cell, reason, outcome.detail)
            failed[cell.name] = reason
        watch.ended(cell, found, reason)
    return Outcomes(finished, failed)


def whole(folder: StudyFolder, cell: Cell, watch: Watch) -> Finished | None:
    """Return a cell's results; what cannot be read of a run is named and set aside."""
    try:
        found = folder.read(cell)
        if not found and (folder.run_of(cell).path / EXPERIMENT).exists():
            folder.run_of(cell).checkpoint()
            folder.run_of(cell).pinned()
    except (Damaged, UserError) as error:
        reason = str(error).partition("; start again")[0]
        watch.say(f"damaged: {reason}; moved to '{folder.set_aside(cell)}' and run again")
        return None
    return found


def finished_of(folder: StudyFolder, cells: Sequence[Cell]) -> list[tuple[Cell, Finished]]:
    """Return the cells that are finished and whole with their results, in order."""
    return [(cell, found) for cell in cells if (found := _read(folder, cell))]


def found_best(folder: StudyFolder, plan: Plan) -> dict[Key, Best]:
    """Return what the trials that are finished so far say of the best settings."""
    trials = finished_of(folder, [trial.cell for trial in plan.trials])
    return best_of(plan.trials, {cell.name: each.result["score"] for cell, each in trials})


def _read(folder: StudyFolder, cell: Cell) -> Finished | None:
    try:
        return folder.read(cell)
    except Damaged:
        return None


def _job(folder: StudyFolder, cell: Cell) -> Job:
    toml = cell.experiment.to_toml()
    path = folder.run_of(cell).path.resolve()
    return Job(cell.name, toml, str(path), cell.experiment.backbone)
