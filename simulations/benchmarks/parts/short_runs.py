"""Short runs whose figures are kept in a folder, so that a benchmark of many can be resumed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from simulations.simulation import prepare, quiet, simulate


def measured(settings: Sequence[str], file: Path) -> dict[str, Any]:
    """Return score, clipped updates and other metrics of a run, from its file or from a new run."""
    if not file.exists():
        experiment = Experiment.load("", settings)
        with tempfile.TemporaryDirectory() as scratch, quiet():
            folder, _ = prepare(experiment, Path(scratch) / "run")
            result = simulate(folder, experiment)
            clipped = sum(len(line["clipped"]) for line in folder.rounds())
        figures = {"score": result["score"], "clipped": clipped, "metrics": result["metrics"]}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, figures)
    return json.loads(file.read_text(encoding="utf-8"))
