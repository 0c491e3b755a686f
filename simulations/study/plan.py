"""A study's runs in two phases: the trials of its search, then its cells at the best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedpeft.errors import UserError, nearest
from fedpeft.overrides import leaves, set_key
from simulations.study.cells import (
    Axis,
    Cell,
    axes_of,
    base_of,
    cell_of,
    combinations,
    require_different,
)
from simulations.study.file import StudyFile
from simulations.study.search import Best, Key, Trial, axes_by, trials_of


@dataclass(frozen=True)
class Plan:
    """What a study asks for; all of it is checked when the plan is made.

    Raises:
        UserError: an axis that is no key, settings that do not go together, an empty grid, two
            cells with the same settings.
    """

    study: StudyFile
    overrides: tuple[str, ...] = ()  # key=value of the command line, over the base
    trials: tuple[Trial, ...] = field(init=False)

    def __post_init__(self) -> None:
        search = self.study.search
        trials = trials_of(search, base_of(self.study, self.overrides), self.axes) if search else ()
        object.__setattr__(self, "trials", trials)
        require_different([trial.cell for trial in trials])
        cells = self.cells({trial.key: Best(trial.values, 0.0, ()) for trial in reversed(trials)})
        # What is searched may end where another cell stands: that is a result, and no slip.
        require_different([cell for cell in cells if cell.key not in self.searched])
        require_different([cell for cell in cells if cell.key in self.searched])
        self._check(cells)

    def _check(self, cells: Sequence[Cell]) -> None:
        """Raise UserError for what would be wrong or silently do nothing."""
        search = self.study.search
        self._require_own_overrides()
        if not search and any(choice.over for axis in self.axes for choice in axis.choices):
            raise UserError("`over` at a choice needs a [search]")
        for cell in cells:
            task, privacy = cell.experiment.task, cell.experiment.privacy
            if privacy.ledger:
                raise UserError(
                    f"privacy.ledger = '{privacy.ledger}': the runs of a study would spend one "
                    f"budget in whatever order they run; leave it out"
                )
            if (
                search
                and task.name == "custom"
                and not task.dev
                and cell.experiment.seed != search.seed
            ):
                raise UserError(
                    "search: without task.dev each seed holds out other rows, and a trial would "
                    "see them; name a file with task.dev"
                )
        known = {cell.experiment.task.name for cell in cells}
        known |= {cell.labels.get(axis, "") for cell in cells for axis in ("task", "task.name")}
        for name in self.study.report.targets:
            if name not in known:
                raise UserError(f"report.targets: '{name}' is no task of the study")
        self._check_published()

    def _check_published(self) -> None:
        """Raise UserError if a published figure names an axis that is none.

        Its label may be one that the study has not, as of a method that was not run.
        """
        axes = {name for axis in self.axes for choice in axis.choices for name in choice.labels}
        for number, each in enumerate(self.study.published, 1):
            for name in each.where.keys() - axes:
                hint = nearest(name, axes)
                raise UserError(f"published {number}: where.{name}: no axis of the study{hint}")

    def _require_own_overrides(self) -> None:
        """Raise UserError if an axis decides a key of the command line: it would change nothing."""
        for key in (override.partition("=")[0].strip() for override in self.overrides):
            for axis in self.axes:
                if all(key in dict(leaves(choice.settings)) for choice in axis.choices):
                    raise UserError(f"-s {key}: the study's axis '{axis.name}' sets it everywhere")

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, seeds first."""
        return axes_of(self.study)

    @cached_property
    def by(self) -> tuple[str, ...]:
        """The axes along which the search chooses; none without a search."""
        return axes_by(self.study.search, self.axes) if self.study.search else ()

    def cells(self, best: Mapping[Key, Best]) -> list[Cell]:
        """Return the cells at the settings that a search found; those it found none for are out.

        Raises:
            UserError: see the class.
        """
        base, cells = base_of(self.study, self.overrides), []
        for chosen in combinations(self.axes):
            cell = cell_of(base, chosen, by=self.by)
            if cell.key in best:
                found: dict[str, Any] = {}
                for path, value in best[cell.key].values.items():
                    set_key(found, path, value)
                cell = cell_of(base, chosen, found, by=self.by)
            elif cell.key in self.searched:
                continue
            cells.append(cell)
        return cells

    @cached_property
    def searched(self) -> frozenset[Key]:
        """The combinations that have trials; the others run as they stand."""
        return frozenset(trial.key for trial in self.trials)

    @cached_property
    def size(self) -> int:
        """The number of cells."""
        return sum(1 for _ in combinations(self.axes))
