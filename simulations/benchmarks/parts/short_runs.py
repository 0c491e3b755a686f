"""Figures of short runs, kept in a folder, so that a benchmark of many can be resumed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from simulations.simulation import prepare, quiet, simulate


def kept(
    settings: Sequence[str], folder: Path, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the figures of a run with these settings: from its file, or measured now.

    The file's name is a digest of all settings, so runs of other options never share it.
    """
    file = folder / f"{sha256(json.dumps([*settings]).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        figures = measure()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, {"settings": [*settings], "figures": figures})
    figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    return figures


def result_of(settings: Sequence[str]) -> dict[str, Any]:
    """Return the result of a new run, and as ``clipped`` how many updates were."""
    experiment = Experiment.load("", settings)
    with tempfile.TemporaryDirectory() as scratch, quiet():
        folder, _ = prepare(experiment, Path(scratch) / "run")
        result = simulate(folder, experiment)
        return {**result, "clipped": sum(len(line["clipped"]) for line in folder.rounds())}


def measured(settings: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return score, clipped updates and other metrics of a run, kept in the folder."""

    def figures() -> dict[str, Any]:
        result = result_of(settings)
        return {name: result[name] for name in ("score", "clipped", "metrics")}

    return kept(settings, folder, figures)


def measured_all(
    runs: Sequence[Sequence[str]], folder: Path, jobs: int = 1
) -> list[dict[str, Any]]:
    """Return what ``measured`` does for each run, ``jobs`` at a time, and print the progress."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    measure = partial(measured, folder=folder)
    if jobs == 1:
        return [*_shown(map(measure, runs), len(runs))]
    context = multiprocessing.get_context("spawn")
    start = logging.getLogger("flwr").setLevel
    with ProcessPoolExecutor(jobs, context, start, (logging.ERROR,)) as pool:
        return [*_shown(pool.map(measure, runs), len(runs))]


def _shown(figures: Iterable[dict[str, Any]], total: int) -> Iterable[dict[str, Any]]:
    for number, each in enumerate(figures, start=1):
        yield each
        if number % 50 == 0 or number == total:
            print(f"{number} of {total} runs", flush=True)
