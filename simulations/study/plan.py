"""A study's runs in two phases: the trials of its search, then its cells at the best settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedpeft.overrides import set_key
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
    trials: tuple[Trial, ...] = field(init=False)

    def __post_init__(self) -> None:
        search = self.study.search
        trials = trials_of(search, base_of(self.study), self.axes) if search else ()
        object.__setattr__(self, "trials", trials)
        require_different([trial.cell for trial in trials])
        self.cells({trial.key: Best(trial.values, 0.0, ()) for trial in reversed(trials)})

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
        base, cells = base_of(self.study), []
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
        require_different(cells)
        return cells

    @cached_property
    def searched(self) -> frozenset[Key]:
        """The combinations that have trials; the others run as they stand."""
        return frozenset(trial.key for trial in self.trials)

    @cached_property
    def size(self) -> int:
        """The number of cells."""
        return sum(1 for _ in combinations(self.axes))
