"""The interface of tracking tools, and the values reported to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import leaves

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Begun:
    """A tool's run: its id, and the last round it holds.

    After a kill, that round may be earlier than the last one reported.
    """

    run: str
    done: int = 0


class Tracker(Protocol):
    """One run in one tool. An exception of a method stops the tracking, not the run."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Begin the tool's run, or continue the run of an earlier session.

        Args:
            experiment: its settings are the hyperparameters.
            folder: run folder, which receives the tool's files.
            kept: the tool's run of an earlier session, and the last round reported.
        """

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Write a round, counted from 1; ``values`` as in ``simulations.measured``."""

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """End with the result, see ``result_values``; None if the run did not finish."""


def settings_of(experiment: Experiment) -> dict[str, Scalar]:
    """Return an experiment's settings by full key; lists as text, without unset ones."""
    return _scalars(leaves(experiment.model_dump()))


def result_values(result: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the numbers and texts of result.json by ``result.`` and their full key."""
    return _scalars(leaves(result, "result."))


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _scalars(items: Iterable[tuple[str, Any]]) -> dict[str, Scalar]:
    return {key: _scalar(value) for key, value in items if value is not None}


def _scalar(value: Any) -> Scalar:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return value if isinstance(value, bool | int | float | str) else str(value)
