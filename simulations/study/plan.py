"""The runs of a study: the trials of its search, then its cells at the best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedpeft.errors import UserError, nearest
from fedpeft.experiment.overrides import leaves, set_key
from simulations.study.cells import (
    Axis,
    Cell,
    axes_of,
    base_of,
    cell_of,
    combinations,
    key_of,
    require_different,
)
from simulations.study.choices import Choices
from simulations.study.file import StudyFile
from simulations.study.search import Best, Key, Trial, axes_by, trials_of


@dataclass(frozen=True)
class Plan:
    """All runs of a study, checked when the plan is made.

    Raises:
        UserError: an axis that is not a setting, settings that contradict each other, an empty
            grid, two cells with the same settings.
    """

    study: StudyFile
    overrides: tuple[str, ...] = ()  # key=value of the command line, over the base
    choices: Choices = field(default_factory=Choices, compare=False)

    def __post_init__(self) -> None:
        require_different([trial.cell for trial in self.trials])
        cells = self.first_cells
        # A search may end at the settings of a cell that is not searched: a result, no mistake.
        require_different([cell for cell in cells if cell.key not in self.searched])
        require_different([cell for cell in cells if cell.key in self.searched])
        self._require_effective_overrides()
        self._check_cells(cells)
        self._check_targets(cells)
        self._check_published()

    def _check_cells(self, cells: Sequence[Cell]) -> None:
        """Raise UserError for settings that a study cannot run correctly."""
        search = self.study.search
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

    def _check_targets(self, cells: Sequence[Cell]) -> None:
        """Raise UserError if a target names a task that no cell has."""
        known = {cell.experiment.task.name for cell in cells}
        known |= {cell.labels.get(axis, "") for cell in cells for axis in ("task", "task.name")}
        for name in self.study.report.targets:
            if name not in known:
                raise UserError(f"report.targets: '{name}' is no task of the study")

    def _check_published(self) -> None:
        """Raise UserError if a published figure names an axis that does not exist.

        Its label need not exist: a method that was not run may be published.
        """
        axes = {name for axis in self.axes for choice in axis.choices for name in choice.labels}
        for number, published in enumerate(self.study.published, 1):
            for name in published.where.keys() - axes:
                hint = nearest(name, axes)
                raise UserError(f"published {number}: where.{name}: no axis of the study{hint}")

    def _require_effective_overrides(self) -> None:
        """Raise UserError if an axis sets a key of the command line: the override has no effect."""
        for key in (override.partition("=")[0].strip() for override in self.overrides):
            for axis in self.axes:
                if all(key in dict(leaves(choice.settings)) for choice in axis.choices):
                    raise UserError(f"-s {key}: the study's axis '{axis.name}' sets it everywhere")

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, seeds first."""
        return axes_of(self.study)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the search; none without a search."""
        search = self.study.search
        base = base_of(self.study, self.overrides)
        return trials_of(search, base, self.axes, self.choices) if search else ()

    @cached_property
    def by(self) -> tuple[str, ...]:
        """The axes for which the search chooses settings separately; none without a search."""
        return axes_by(self.study.search, self.axes) if self.study.search else ()

    def cells(self, best: Mapping[Key, Best]) -> list[Cell]:
        """Return the cells at the best settings; leave out searched ones without any.

        Raises:
            UserError: see the class.
        """
        base, cells = base_of(self.study, self.overrides), []
        for chosen in combinations(self.axes):
            key = key_of(chosen, self.by)
            if key in self.searched and key not in best:
                continue
            settings: dict[str, Any] = {}
            for path, value in best[key].values.items() if key in best else ():
                set_key(settings, path, value)
            cells.append(cell_of(base, chosen, settings, choices=self.choices, by=self.by))
        return cells

    @cached_property
    def first_cells(self) -> list[Cell]:
        """The cells at the first values that the search tries."""
        return self.cells(
            {trial.key: Best(trial.values, 0.0, ()) for trial in reversed(self.trials)}
        )

    @cached_property
    def searched(self) -> frozenset[Key]:
        """The combinations that have trials; the others run with the settings of the file."""
        return frozenset(trial.key for trial in self.trials)

    @cached_property
    def size(self) -> int:
        """The number of cells."""
        return sum(1 for _ in combinations(self.axes))
