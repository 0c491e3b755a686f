"""``fedpeft study run``: the search if there is one, then the cells, then the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fedpeft.errors import UserError
from fedpeft.vectorfile import EXPERIMENT
from simulations.study.agreement import disagreements
from simulations.study.cell_process import Job, Outcome
from simulations.study.cells import Cell
from simulations.study.folder import Damaged, StudyFolder
from simulations.study.plan import Plan
from simulations.study.search import Best, Key, best_of
from simulations.study.table import Finished, write_table

Pool = Callable[[Sequence[Job], Callable[[Job], None]], Iterator[tuple[Job, Outcome]]]


class Watch(Protocol):
    """Receives the progress of a study."""

    def begin(self, phase: str, cells: Sequence[Cell], finished: int) -> None:
        """A phase begins, with ``finished`` cells that were finished before."""

    def started(self, cell: Cell) -> None:
        """A cell begins or resumes."""

    def ended(self, cell: Cell, finished: Finished | None, reason: str) -> None:
        """A cell ended: with its results, or with the reason for its failure."""

    def say(self, line: str) -> None:
        """Show another message."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a phase.

    Attributes:
        finished: name of a cell -> its results.
        failed: name of a cell -> the reason for its failure.
        retry: whether a failed cell may succeed when it runs again.
    """

    finished: dict[str, Finished]
    failed: dict[str, str]
    retry: bool


def run_study(folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch) -> Outcomes:
    """Run all unfinished cells of a study and write its table, also after an interruption.

    Returns:
        The outcomes of the cells. The failed include trials, and combinations without settings.

    Raises:
        UserError: cells read different data or weights; the table is written first.
    """
    best, search = searched(folder, plan, pool, watch)
    cells = plan.cells(best)
    folder.keep(plan.choices)  # the best settings may leave others open
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
    failed, retry = search.failed | outcomes.failed, search.retry or outcomes.retry
    return Outcomes(outcomes.finished, failed, retry)


def searched(
    folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch
) -> tuple[dict[Key, Best], Outcomes]:
    """Run the unfinished trials of a study, and write the best settings.

    Returns:
        The best settings of each combination with a scored trial; and the outcomes of the trials.
        The failed include combinations without a scored trial.
    """
    if not plan.trials:
        return {}, Outcomes({}, {}, retry=False)
    trials = [trial.cell for trial in plan.trials]
    outcomes = run_cells(folder, trials, pool, watch, "search")
    scores = {name: trial.result["score"] for name, trial in outcomes.finished.items()}
    best = best_of(plan.trials, scores)
    folder.save_best(plan.by, best)
    lost = sorted(plan.searched - best.keys())
    no_score = {", ".join(key): "no trial of the search ended with a score" for key in lost}
    return best, replace(outcomes, failed=no_score | outcomes.failed)


def run_cells(
    folder: StudyFolder, cells: Sequence[Cell], pool: Pool, watch: Watch, phase: str
) -> Outcomes:
    """Run the unfinished cells on a pool; a failed one does not stop the others."""
    finished, waiting, failed, retry = {}, [], {}, False
    for cell in cells:
        try:
            results = whole(folder, cell, watch)
        except UserError as error:
            failed[cell.name] = str(error)
            folder.note_failure(cell, str(error), "")
            continue
        if results:
            finished[cell.name] = results
            folder.forget_failure(cell)
        else:
            waiting.append(cell)
    watch.begin(phase, cells, len(finished))
    named = {cell.name: cell for cell in waiting}
    jobs = [_job(folder, cell) for cell in waiting]
    for job, outcome in pool(jobs, lambda job: watch.started(named[job.name])):
        cell, reason = named[job.name], outcome.reason
        results = None if reason else _read(folder, cell)
        if results:
            folder.forget_failure(cell)
            finished[cell.name] = results
        else:
            reason = reason or f"no result in '{job.folder}'; do all machines share this folder?"
            folder.note_failure(cell, reason, outcome.detail)
            failed[cell.name], retry = reason, retry or (bool(outcome.reason) and outcome.retry)
        watch.ended(cell, results, reason)
    return Outcomes(finished, failed, retry)


def whole(folder: StudyFolder, cell: Cell, watch: Watch) -> Finished | None:
    """Return a cell's results; report and set aside a run that cannot be read.

    Raises:
        UserError: it is a private run, which must not be repeated without a decision.
    """
    run = folder.run_of(cell)
    try:
        results = folder.read(cell)
        if not results and (run.path / EXPERIMENT).exists() and not run.in_use():
            run.checkpoint()
            run.pinned()
    except (Damaged, UserError) as error:
        reason = str(error).partition("; start again")[0]
        watch.say(f"damaged: {reason}; moved to '{folder.set_aside(cell)}' and run again")
        return None
    return results


def finished_of(folder: StudyFolder, cells: Sequence[Cell]) -> list[tuple[Cell, Finished]]:
    """Return the finished, undamaged cells with their results, in order."""
    return [(cell, results) for cell in cells if (results := _read(folder, cell))]


def best_so_far(folder: StudyFolder, plan: Plan) -> dict[Key, Best]:
    """Return the best settings according to the trials finished so far."""
    trials = finished_of(folder, [trial.cell for trial in plan.trials])
    return best_of(plan.trials, {cell.name: results.result["score"] for cell, results in trials})


def _read(folder: StudyFolder, cell: Cell) -> Finished | None:
    try:
        return folder.read(cell)
    except Damaged:
        return None


def _job(folder: StudyFolder, cell: Cell) -> Job:
    experiment, path = cell.experiment, folder.run_of(cell).path.resolve()
    return Job(cell.name, experiment.to_toml(), str(path), experiment.backbone)
