"""The cells of a study: every combination of its axes as an experiment with a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.overrides import apply_override, leaves, merged
from simulations.study.file import CELLS, SEED, StudyFile

LABEL, OVER = "label", "over"  # keys of a choice that are no settings


@dataclass(frozen=True)
class Choice:
    """One place on an axis.

    Attributes:
        labels: mostly one, of the axis's own name.
        settings: a tree.
        over: a tree of what a search tries here, in place of what it tries elsewhere.
    """

    labels: dict[str, str]
    settings: dict[str, Any]
    over: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """All labels together, which tell the choice from the others of its axis."""
        return " · ".join(self.labels.values())


@dataclass(frozen=True)
class Axis:
    """A direction of the grid."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        labels: on every axis.
        experiment: all settings.
        key: the combination whose settings a search chooses; empty without one.
    """

    labels: dict[str, str]
    experiment: Experiment
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder: labels, and the start of the experiment's digest."""
        said = re.sub(r"[^a-z0-9.]+", "-", "-".join(self.labels.values()).lower()).strip("-.")
        return f"{said[:80]}-{self.experiment.digest[:8]}"


def axes_of(study: StudyFile) -> tuple[Axis, ...]:
    """Return the axes of a study, its seeds first: an early look then shows every combination.

    Raises:
        UserError: an axis that is no list, an empty one, two choices with one label.
    """
    axes = list(_axes(study.axes))
    if study.cells:
        axes.append(_axis(CELLS, list(study.cells)))
    _require_own_labels(axes)
    return tuple(sorted(axes, key=lambda axis: axis.name != SEED))


def combinations(axes: tuple[Axis, ...]) -> Iterator[dict[str, Choice]]:
    """Yield a choice on every axis, in the order of the axes."""
    for chosen in product(*(axis.choices for axis in axes)):
        yield {axis.name: choice for axis, choice in zip(axes, chosen, strict=True)}


def base_of(study: StudyFile, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that all cells begin with.

    Runs stand side by side, so each has one thread unless the study says otherwise: bits then
    depend neither on the machine's cores nor on how many runs share them.
    """
    base = merged({"engine": {"threads": 1}}, study.base)
    for override in overrides:
        apply_override(base, override)
    return base


def cell_of(
    base: Mapping[str, Any],
    chosen: Mapping[str, Choice],
    *more: Mapping[str, Any],
    by: Sequence[str] = (),
) -> Cell:
    """Return the cell of one combination, with further settings laid over it.

    Args:
        base: settings of the study.
        chosen: the choice on each axis.
        more: trees of settings.
        by: axes along which a search chooses.

    Raises:
        UserError: an axis that is no key of an experiment, settings that do not go together.
    """
    labels = {name: label for choice in chosen.values() for name, label in choice.labels.items()}
    values = dict(base)
    for settings in (*(choice.settings for choice in chosen.values()), *more):
        values = merged(values, settings)
    try:
        return Cell(labels, Experiment.of(values), tuple(chosen[axis].label for axis in by))
    except UserError as error:
        said = ", ".join(f"{axis} '{label}'" for axis, label in labels.items())
        raise UserError(f"cell with {said}: {error}" if said else str(error)) from None


def require_different(cells: list[Cell]) -> None:
    """Raise UserError if two cells have the same settings: one of them was a slip."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.experiment.digest, cell)
        if other is not cell:
            both = [", ".join(each.labels.values()) for each in (other, cell)]
            raise UserError(f"two cells with the same settings: '{both[0]}' and '{both[1]}'")


def _axes(values: Mapping[str, Any], path: str = "") -> Iterator[Axis]:
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from _axes(value, f"{name}.")
        elif isinstance(value, list):
            yield _axis(name, value)
        else:
            raise UserError(f"axes.{name} = {value!r}: expected a list of values")


def _axis(name: str, values: list[Any]) -> Axis:
    if not values:
        raise UserError(f"axes.{name} = []: an empty axis leaves no cells; expected values")
    choices = tuple(_choice(name, value) for value in values)
    for choice in choices:
        if choice.labels.keys() != choices[0].labels.keys():
            both = [", ".join(each.labels) for each in (choices[0], choice)]
            raise UserError(f"axes.{name}: labels '{both[0]}' and '{both[1]}'; expected the same")
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"axes.{name}: the label '{label}' stands there twice")
    return Axis(name, choices)


def _require_own_labels(axes: list[Axis]) -> None:
    """Raise UserError if two axes give a cell a label of the same name."""
    owner: dict[str, str] = {}
    for axis in axes:
        for name in {name for choice in axis.choices for name in choice.labels}:
            if owner.setdefault(name, axis.name) != axis.name:
                raise UserError(f"axes.{axis.name}: axes.{owner[name]} has labels '{name}', too")


def _choice(axis: str, value: Any) -> Choice:
    if not isinstance(value, Mapping):
        return Choice({axis: _said(value)}, _tree(axis, value))
    settings = {key: each for key, each in value.items() if key not in (LABEL, OVER)}
    label = value.get(LABEL, " ".join(_said(each) for _, each in leaves(settings)))
    labels = dict(label) if isinstance(label, Mapping) else {axis: label}
    if not labels or not all(isinstance(each, str) and each.strip() for each in labels.values()):
        raise UserError(f"axes.{axis}: label = {label!r}, expected a text, or a table of texts")
    return Choice(labels, settings, value.get(OVER, {}))


def _tree(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def _said(value: Any) -> str:
    """Return a value as a label: ``0.001``, ``true``, ``0, 1``."""
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
