"""The search for settings: trials on examples held out of the training set; the best one wins.

No trial reads the dev set: ``task.validation`` splits the training examples into a part to train on
and a part to evaluate on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, isfinite, log
from typing import Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.overrides import leaves, set_key
from fedpeft.randomness import generator
from simulations.study.cells import Axis, Cell, Choice, cell_of, combinations
from simulations.study.choices import Choices
from simulations.study.file import SEED, SearchSection

Key = tuple[str, ...]  # the labels on the axes that settings are chosen for
_ONLY_LAST = 1_000_000  # rounds between evaluations: evaluate after the last round only
_FIXED = ("seed", "task.validation")  # settings of a trial that only the search may set
_DRAWS = 20  # draws per random trial, until it differs from earlier ones


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    key: Key
    values: dict[str, Any]  # of the searched keys, by full name
    edges: tuple[str, ...]  # keys whose value is the smallest or largest of its grid
    cell: Cell


@dataclass(frozen=True)
class Best:
    """The best settings of one combination."""

    values: dict[str, Any]
    score: float
    edges: tuple[str, ...]  # keys for which a value beyond the grid might be better
    failed: int = 0  # number of trials without a score


def axes_by(search: SearchSection, axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return the names of the axes for which settings are chosen separately.

    Raises:
        UserError: ``search.by`` names an unknown axis.
    """
    names = [axis.name for axis in axes]
    if search.by is None:
        return tuple(name for name in names if name != SEED)
    for name in search.by:
        if name not in names:
            raise UserError(f"search.by: '{name}' is no axis; expected of {', '.join(names)}")
    return search.by


def trials_of(
    search: SearchSection, base: Mapping[str, Any], axes: Sequence[Axis], choices: Choices
) -> tuple[Trial, ...]:
    """Return all trials of a search, in running order.

    Axes that are not in ``search.by`` stay at their first choice. A combination with nothing to
    try has no trials.

    Raises:
        UserError: a range without random trials, or contradicting settings.
    """
    by = axes_by(search, axes)
    _require_used(search, axes, by)
    fixed = {axis.name: axis.choices[0] for axis in axes if axis.name not in by}
    varied = tuple(axis for axis in axes if axis.name in by)
    trials: list[Trial] = []
    for chosen in combinations(varied):
        tried = dict(_over(search.over))
        for choice in chosen.values():
            tried |= dict(_over(choice.over))
        if tried:
            trials += [
                _trial(search, base, by, fixed | chosen, values, tried, choices)
                for values in _points(search, tried)
            ]
    if not trials:
        raise UserError("search.over: names no key; expected over.local.lr = [1e-3, 1e-2] or so")
    return tuple(trials)


def _require_used(search: SearchSection, axes: Sequence[Axis], by: Sequence[str]) -> None:
    """Raise UserError if a value to try or to set would be ignored."""
    for path, _ in leaves(search.set):
        if path in _FIXED:
            raise UserError(
                f"search.set.{path}: the search sets it; see search.{path.rpartition('.')[2]}"
            )
    for axis in axes:
        if axis.name not in by and any(choice.over for choice in axis.choices):
            raise UserError(f"axes.{axis.name}: has `over`, and search.by does not name it")


def best_of(trials: Sequence[Trial], scores: Mapping[str, float | None]) -> dict[Key, Best]:
    """Return the best trial of each combination; the first of equal ones.

    Args:
        trials: see ``trials_of``.
        scores: name of a trial's cell -> score on the validation examples; None or missing for
            failed trials.
    """
    bests: dict[Key, Best] = {}
    failed: Counter[Key] = Counter()
    for trial in trials:
        score = scores.get(trial.cell.name)
        if score is None or not isfinite(score):
            failed[trial.key] += 1
        elif trial.key not in bests or score > bests[trial.key].score:
            bests[trial.key] = Best(trial.values, score, trial.edges)
    return {key: replace(best, failed=failed[key]) for key, best in bests.items()}


def _trial(
    search: SearchSection,
    base: Mapping[str, Any],
    by: Sequence[str],
    chosen: Mapping[str, Choice],
    values: dict[str, Any],
    tried: Mapping[str, Any],
    choices: Choices,
) -> Trial:
    settings: dict[str, Any] = {"output": {"eval_every": _ONLY_LAST}}
    for path, value in values.items():
        set_key(settings, path, value)
    fixed = {"seed": search.seed, "task": {"validation": search.validation}}  # override search.set
    tried_values = " ".join(f"{path.rpartition('.')[2]}={value}" for path, value in values.items())
    labels = {axis: chosen[axis].label for axis in by} | {"trial": tried_values}
    edges = tuple(path for path, grid in tried.items() if _at_an_end(values[path], grid))
    more = settings, search.set, fixed
    cell = cell_of(base, chosen, *more, choices=choices, by=by, labels=labels)
    return Trial(cell.key, values, edges, cell)


def _points(search: SearchSection, over: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values of each trial: all combinations or random ones."""
    if search.trials:
        random = generator(search.seed, "search")
        drawn: list[dict[str, Any]] = []
        for _ in range(_DRAWS * search.trials):
            point = {path: _drawn(values, random) for path, values in over.items()}
            if point not in drawn and len(drawn) < search.trials:
                drawn.append(point)
        yield from drawn
        return
    for path, values in over.items():
        if not isinstance(values, list):
            raise UserError(f"search.over.{path}: a range needs search.trials, the number of tries")
    for chosen in product(*over.values()):
        yield dict(zip(over, chosen, strict=True))


def _over(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full key, list or range) of the searched settings."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not {"low", "high"} <= value.keys():
            yield from _over(value, f"{path}{key}.")
        elif f"{path}{key}" in _FIXED:
            raise UserError(f"search.over.{path}{key}: the search sets it; see search.{key}")
        elif not value or not isinstance(value, list | Mapping) or not _is_range(value):
            raise UserError(
                f"search.over.{path}{key} = {value!r}: expected a list of values, or a range "
                f"{{low = 1e-4, high = 1e-1, log = true}}"
            )
        else:
            yield f"{path}{key}", value


def _is_range(value: Any) -> bool:
    """Return whether a value is a valid list or range."""
    if isinstance(value, list):
        return True
    low, high = value["low"], value["high"]
    numbers = all(isinstance(end, int | float) for end in (low, high))
    return numbers and low < high and (low > 0 or not value.get("log"))


def _at_an_end(value: Any, tried: Any) -> bool:
    """Return whether a number is the smallest or largest of a grid of three or more."""
    if not isinstance(tried, list) or len(tried) < 3:
        return False
    numbers = all(isinstance(number, int | float) for number in tried)
    return numbers and value in (min(tried), max(tried))


def _drawn(values: Any, random: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[int(random.integers(len(values)))]
    low, high = float(values["low"]), float(values["high"])
    if values.get("log"):
        return float(f"{exp(random.uniform(log(low), log(high))):.4g}")
    return float(f"{random.uniform(low, high):.4g}")
