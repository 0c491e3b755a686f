"""What a frozen backbone scores without federated training: the simplest thing to do instead.

A logistic or ridge regression of scikit-learn on what the backbone makes of all training texts, in
one place. Texts are read as the makers of the backbone read them. For pairs of texts there is
another line: the same regression on their cosine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import read_object, write_json
from fedpeft.vectorfile import EXPERIMENT
from server.runfolder import RunFolder
from simulations.spread import PARTITION

FILE = "frozen.json"
MOST = 50_000  # training examples that are read unless the user asks for more


class Line(TypedDict):
    """A way to use the frozen backbone, and its score on the evaluation examples."""

    name: str
    score: float


def lines_of(run: Path) -> list[Line]:
    """Return the lines that a run's folder holds; [] if they were not measured."""
    return list(read_object(run / FILE).get("lines", []))


def measure(run: Path, most: int, say: Callable[[str], None]) -> list[Line]:
    """Return the lines of a simulated run, and keep them in its folder; [] if it can have none.

    Args:
        run: the folder.
        most: training examples that are read.
        say: is told that it begins.

    Raises:
        UserError: data or backbone is missing, or there are more examples.
    """
    if (run / FILE).exists() or not (run / PARTITION).exists():
        return lines_of(run)
    experiment = Experiment.read(run / EXPERIMENT)
    if experiment.task.kind == "text" or experiment.privacy.unit != "none":
        return []
    say(f"{run}: measuring the frozen backbone")
    from simulations.frozen_scores import scores

    lines = scores(experiment, most)
    write_json(run / FILE, {"lines": lines})
    return lines


def measure_all(runs: Sequence[Path], most: int, say: Callable[[str], None]) -> None:
    """Measure the lines of runs, those of equal data and backbones once; say what cannot be."""
    known: dict[str, list[Line]] = {}
    for run in runs:
        pinned = RunFolder(run).pinned()
        same = "".join(pinned.get(key, f"{run} ") for key in ("data", "backbone"))
        if same in known and not (run / FILE).exists():
            write_json(run / FILE, {"lines": known[same]})
            continue
        try:
            known[same] = measure(run, most, say)
        except UserError as error:
            say(f"{run}: the frozen backbone is not measured: {error}")
