"""The cells of a study: every combination of its axes as an experiment with a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import apply_override, leaves, merged
from simulations.study.choices import Choices
from simulations.study.file import CELLS, SEED, StudyFile

LABEL, OVER = "label", "over"  # keys of a choice that are not settings


@dataclass(frozen=True)
class Choice:
    """One point of an axis.

    Attributes:
        labels: name -> label; mostly one, with the name of the axis.
        settings: nested settings.
        over: nested values that a search tries here instead of those of the search.
    """

    labels: dict[str, str]
    settings: dict[str, Any]
    over: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """All labels together, unique on the axis."""
        return " · ".join(self.labels.values())


@dataclass(frozen=True)
class Axis:
    """A dimension of the grid."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        labels: name -> label, of all axes.
        experiment: all settings.
        key: the combination whose settings a search chooses; empty without a search.
    """

    labels: dict[str, str]
    experiment: Experiment
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the cell's folder: its labels and the start of the experiment's digest."""
        labels = re.sub(r"[^a-z0-9.]+", "-", "-".join(self.labels.values()).lower()).strip("-.")
        return f"{labels[:80]}-{self.experiment.digest[:8]}"


def axes_of(study: StudyFile) -> tuple[Axis, ...]:
    """Return the axes of a study, seeds first: early results then cover every combination.

    Raises:
        UserError: an axis is not a list or is empty, or two choices have the same label.
    """
    axes = list(_axes(study.axes))
    if study.cells:
        axes.append(_axis(CELLS, list(study.cells)))
    _require_separate_labels(axes)
    return tuple(sorted(axes, key=lambda axis: axis.name != SEED))


def combinations(axes: tuple[Axis, ...]) -> Iterator[dict[str, Choice]]:
    """Yield one choice per axis for each combination, in the order of the axes."""
    for chosen in product(*(axis.choices for axis in axes)):
        yield {axis.name: choice for axis, choice in zip(axes, chosen, strict=True)}


def base_of(study: StudyFile, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings shared by all cells.

    Each run has one thread unless the study sets another number: bits then depend neither on the
    number of cores nor on the number of parallel runs.
    """
    base = merged({"engine": {"threads": 1}}, study.base)
    for override in overrides:
        apply_override(base, override)
    return base


def key_of(chosen: Mapping[str, Choice], by: Sequence[str]) -> tuple[str, ...]:
    """Return the labels on the axes ``by``: the combination whose settings a search chooses."""
    return tuple(chosen[axis].label for axis in by)


def cell_of(
    base: Mapping[str, Any],
    chosen: Mapping[str, Choice],
    *more: Mapping[str, Any],
    choices: Choices,
    by: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Cell:
    """Return the cell of one combination, overlaid with further settings.

    Args:
        base: settings of the study.
        chosen: the choice on each axis.
        more: nested settings.
        choices: makes those that the settings leave open.
        by: axes for which a search chooses settings separately.
        labels: of the cell; None = those of the choices.

    Raises:
        UserError: an axis is not a setting, settings contradict each other, or see ``planned``.
    """
    if labels is None:
        labels = {name: text for choice in chosen.values() for name, text in choice.labels.items()}
    values = dict(base)
    for settings in (*(choice.settings for choice in chosen.values()), *more):
        values = merged(values, settings)
    try:
        experiment = choices.made(Experiment.of(values))
        return Cell({**labels}, experiment, key_of(chosen, by))
    except UserError as error:
        raise error_in(labels, error) from None


def error_in(labels: Mapping[str, str], error: UserError) -> UserError:
    """Return an error with the labels of its cell in front."""
    described = ", ".join(f"{axis} '{label}'" for axis, label in labels.items())
    return UserError(f"cell with {described}: {error}" if labels else str(error))


def require_different(cells: list[Cell]) -> None:
    """Raise UserError if two cells have the same settings."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.experiment.digest, cell)
        if other is not cell:
            both = [", ".join(twin.labels.values()) for twin in (other, cell)]
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
            both = [", ".join(names.labels) for names in (choices[0], choice)]
            raise UserError(f"axes.{name}: labels '{both[0]}' and '{both[1]}'; expected the same")
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"axes.{name}: the label '{label}' occurs twice")
    return Axis(name, choices)


def _require_separate_labels(axes: list[Axis]) -> None:
    """Raise UserError if two axes have labels of the same name."""
    owner: dict[str, str] = {}
    for axis in axes:
        for name in {name for choice in axis.choices for name in choice.labels}:
            if owner.setdefault(name, axis.name) != axis.name:
                raise UserError(f"axes.{axis.name}: axes.{owner[name]} has labels '{name}', too")


def _choice(axis: str, value: Any) -> Choice:
    if not isinstance(value, Mapping):
        return Choice({axis: _text(value)}, _tree(axis, value))
    settings = {key: part for key, part in value.items() if key not in (LABEL, OVER)}
    label = value.get(LABEL, " ".join(_text(leaf) for _, leaf in leaves(settings)))
    labels = dict(label) if isinstance(label, Mapping) else {axis: label}
    if not labels or not all(isinstance(text, str) and text.strip() for text in labels.values()):
        raise UserError(f"axes.{axis}: label = {label!r}, expected a text, or a table of texts")
    return Choice(labels, settings, value.get(OVER, {}))


def _tree(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def _text(value: Any) -> str:
    """Return a value as a label: ``0.001``, ``true``, ``0, 1``."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
