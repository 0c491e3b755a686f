"""Cells of a study that a bisection over the sizes of a method asks for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from fedpeft.errors import UserError
from simulations.benchmarks.parts.ladder import METHOD, SIZE, Ladder, first_passing
from simulations.study.cells import Cell
from simulations.study.execution import Pool, Watch, finished_of, run_cells
from simulations.study.folder import StudyFolder
from simulations.study.plan import Plan
from simulations.study.search import Best, Key, best_of
from simulations.study.table import Finished, write_table

Runs = list[tuple[Cell, Finished]]  # the seeds of one size


class Bisection:
    """Runs cells of a study, and their search if it has one.

    Attributes:
        results: method -> size -> the runs of its seeds, in the order in which they ran.
        best: the settings that the search chose for each size.
    """

    def __init__(self, folder: StudyFolder, plan: Plan, pool: Pool, watch: Watch):
        self._folder, self._plan, self._pool, self._watch = folder, plan, pool, watch
        self.results: dict[str, dict[str, Runs]] = {}
        self.best: dict[Key, Best] = {}

    def score(self, ladder: Ladder, size: str) -> float:
        """Run the seeds of one size of a method, and return their mean score.

        Raises:
            UserError: a run failed.
        """
        cells = self._searched(ladder, size)
        finished = self._run(cells, f"{ladder.method} {size}")
        runs = [(cell, finished[cell.name]) for cell in cells]
        self.results.setdefault(ladder.method, {})[size] = runs
        self._save()
        return mean(scores(runs))

    def smallest(self, ladder: Ladder, target: float) -> str | None:
        """Return the smallest size of a method that reaches a score; None if none does."""
        sizes = list(ladder.sizes)
        found = first_passing(len(sizes), lambda at: self.score(ladder, sizes[at]) >= target)
        return None if found is None else sizes[found]

    def _searched(self, ladder: Ladder, size: str) -> list[Cell]:
        """Run the trials of one size, and return its cells at the best settings."""
        (key,) = {cell.key for cell in ladder.sizes[size]}
        trials = [trial for trial in self._plan.trials if trial.key == key]
        if not trials:
            return ladder.sizes[size]
        finished = self._run([trial.cell for trial in trials], f"search of {ladder.method} {size}")
        found = {name: trial.result["score"] for name, trial in finished.items()}
        chosen = best_of(trials, found)
        if not chosen:
            raise UserError(f"{ladder.method} {size}: no trial of the search ended with a score")
        self.best |= chosen
        labels = {METHOD: ladder.method, SIZE: size}.items()
        return [cell for cell in self._plan.cells(chosen) if labels <= cell.labels.items()]

    def _run(self, cells: Sequence[Cell], phase: str) -> dict[str, Finished]:
        outcomes = run_cells(self._folder, cells, self._pool, self._watch, phase)
        if outcomes.failed:
            name, reason = next(iter(outcomes.failed.items()))
            raise UserError(f"{name}: {reason}")
        return outcomes.finished

    def _save(self) -> None:
        """Write the table of the sizes that were run, and what the search chose."""
        runs = [run for sizes in self.results.values() for one in sizes.values() for run in one]
        ran = {cell.name for cell, _ in runs}
        ordered = self._plan.cells({**self._first, **self.best})
        cells = [cell for cell in ordered if cell.name in ran]
        write_table(self._folder.path, finished_of(self._folder, cells))
        if self.best:
            self._folder.save_best(self._plan.by, self.best)

    @property
    def _first(self) -> dict[Key, Best]:
        """The first values that the search tries, for the sizes that are not searched yet."""
        return {trial.key: Best(trial.values, 0.0, ()) for trial in reversed(self._plan.trials)}


def scores(runs: Runs) -> list[float]:
    """Return the score of each run."""
    return [float(finished.result["score"]) for _, finished in runs]
