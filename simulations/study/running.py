"""``fedpeft study run``: the search if there is one, then the cells, then the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpeft.errors import UserError
from fedpeft.vectorfile import EXPERIMENT
from simulations.study.agreement import disagreements
from simulations.study.cells import Cell
from simulations.study.folder import Damaged, StudyFolder
from simulations.study.plan import Plan
from simulations.study.search import Best, Key, best_of
from simulations.study.table import Finished, write_table
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
        What became of the cells. Failed trials are among the failed, and combinations for which
        the search found nothing.

    Raises:
        UserError: what the cells read has changed between them; the table is written all the same.
    """
    best, lost = searched(folder, plan, pool, watch)
    cells = plan.cells(best)
    if others := folder.others(cells):
        watch.say(
            f"{len(others)} runs in '{folder.path}' are of an earlier form of the study: they stay "
            f"there, and are not in its table"
        )
    try:
        outcomes = run_cells(folder, cells, pool, watch, "cells")
    finally:
        write_table(folder.path, finished_of(folder, cells))
    if lines := disagreements(folder, [cell for cell in cells if cell.name in outcomes.finished]):
        raise UserError(f"{lines[0]}; move the runs that are out of date away and add --resume")
    return Outcomes(outcomes.finished, lost | outcomes.failed)


def searched(
    folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch
) -> tuple[dict[Key, Best], dict[str, str]]:
    """Run the trials of a study that are not finished, and write the best settings.

    Returns:
        The best settings of each combination, of those of its trials that have a score; and why
        trials, and with them perhaps whole combinations, have none.
    """
    if not plan.trials:
        return {}, {}
    trials = [trial.cell for trial in plan.trials]
    outcomes = run_cells(folder, trials, pool, watch, "search")
    scores = {name: each.result["score"] for name, each in outcomes.finished.items()}
    best = best_of(plan.trials, scores)
    folder.save_best(plan.by, best)
    lost = sorted(plan.searched - best.keys())
    none = {", ".join(key): "no trial of the search ended with a score" for key in lost}
    return best, none | outcomes.failed


def run_cells(
    folder: StudyFolder, cells: Sequence[Cell], pool: Pool, watch: Watch, phase: str
) -> Outcomes:
    """Run the cells that are not finished, on a pool; none stops the others."""
    finished, waiting, failed = {}, [], {}
    for cell in cells:
        try:
            found = whole(folder, cell, watch)
        except UserError as error:
            failed[cell.name] = str(error)
            folder.note_failure(cell, str(error), "")
            continue
        if found:
            finished[cell.name] = found
            folder.forget_failure(cell)
        else:
            waiting.append(cell)
    watch.begin(phase, cells, len(finished))
    named = {cell.name: cell for cell in waiting}
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
    """Return a cell's results; what cannot be read of a run is named and set aside.

    Raises:
        UserError: it is a private run, which is not simply run again.
    """
    run = folder.run_of(cell)
    try:
        found = folder.read(cell)
        if not found and (run.path / EXPERIMENT).exists() and not run.in_use():
            run.checkpoint()
            run.pinned()
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
