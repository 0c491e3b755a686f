"""What a tracking tool must be able to do, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedpeft.config import Experiment
from fedpeft.overrides import leaves

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Begun:
    """The tool's run: what names it, and the last round it holds, which may be an earlier one than
    it was told if the process was killed.
    """

    run: str
    done: int = 0


class Tracker(Protocol):
    """One run in one tool. What a method raises ends the tracking, never the run."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Begin the tool's run, or go on with the one of an earlier session.

        Args:
            experiment: its settings are the hyper-parameters.
            folder: of the run; what is written goes into it.
            kept: the tool's run of the earlier session, and the last round it was told.
        """

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Write down a round, from 1; ``values`` as in ``simulations.rounds``."""

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """End with the result, see ``result_values``; None if the run was cut short."""


def settings_of(experiment: Experiment) -> dict[str, Scalar]:
    """Return an experiment's settings by their full keys; lists as text, no unset ones."""
    found = leaves(experiment.model_dump())
    return {key: _scalar(value) for key, value in found if value is not None}


def result_values(result: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the numbers and texts of result.json by their full keys after ``result.``."""
    found = leaves(result, "result.")
    return {key: _scalar(value) for key, value in found if value is not None}


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those values that are numbers."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _scalar(value: Any) -> Scalar:
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value)
    return value if isinstance(value, bool | int | float | str) else str(value)
