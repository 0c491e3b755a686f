"""The local engine against the Ray engine: start-up time and time per round.

Each run is a fresh ``fedpeft simulate``. Both engines use all cores: local with the threads of one
process, Ray with one actor per core. Both must end in the same vector. For each run:

- until round 1 s: from the start of the process to the start of round 1.
- start-up s: to the end of round 1, minus an ordinary round; includes the start of the actors and
  the handshake.
- a round s: median of the rounds after the first.
- whole s: to the end of the process.

Example:
    python -m simulations.benchmarks.engines
    python -m simulations.benchmarks.engines --backbone tiny --rounds 10 --repeats 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
from safetensors.numpy import load_file

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RESULT, VECTOR, RunFolder
from fedpeft.runtime import runtime_of
from simulations.benchmarks.common import (
    APART,
    CLOSE,
    Report,
    alternate,
    arguments_of,
    child,
    compare,
    difference,
    record,
    script,
    slash_d,
)

FIGURES = {
    "until round 1 s": "first_round",
    "start-up s": "start_up",
    "a round s": "round",
    "whole s": "whole",
}
#: Telemetry would be timed, too.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Run:
    """Seconds of one run, and its final task vector [P]."""

    first_round: float
    start_up: float
    round: float
    whole: float
    vector: np.ndarray


def run(overrides: Sequence[str], folder: Path) -> Run:
    """Run ``fedpeft simulate`` in a fresh process and read its times.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    settings = [part for override in overrides for part in ("-s", override)]
    command = child("from fedpeft.cli.app import main; main()", "simulate", *settings)
    began = time.time()
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, env=os.environ | QUIET
    )
    whole = time.time() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)}: {(done.stdout + done.stderr)[-2000:]}")
    seconds = [line["seconds"] for line in RunFolder(folder).rounds()]
    first_round = (folder / RESULT).stat().st_mtime - sum(seconds) - began
    ordinary = median(seconds[1:])
    return Run(
        first_round,
        first_round + seconds[0] - ordinary,
        ordinary,
        whole,
        load_file(folder / VECTOR)["vector"],
    )


def measure(backbone: str, options: argparse.Namespace) -> Report:
    """Run both engines alternately.

    Raises:
        SystemExit: they end in different vectors.
    """
    overrides = overrides_of(backbone, options)
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in count())
        ray, local = alternate(
            lambda: run([*overrides, "engine.kind=ray"], next(folders)),
            lambda: run([*overrides, "engine.kind=local"], next(folders)),
            options.repeats,
        )
    experiment = Experiment.load("", overrides)
    start = runtime_of(experiment).parameters.initial(experiment.seed)
    apart = max(difference(a.vector, b.vector, start) for a, b in zip(ray, local, strict=True))
    if not apart <= CLOSE:
        raise SystemExit(f"the engines end {apart:.2g} apart: not the same training")
    table = [
        compare(
            figure,
            ("ray", "local"),
            [getattr(r, key) for r in ray],
            [getattr(r, key) for r in local],
        )
        for figure, key in FIGURES.items()
    ]
    raw = {
        name: [{key: getattr(r, key) for key in FIGURES.values()} for r in runs]
        for name, runs in (("ray", ray), ("local", local))
    }
    facts = {"ratio": "ray / local, of each pair of runs", APART: apart}
    return Report({"repeats": options.repeats, "overrides": " ".join(overrides)}, table, facts, raw)


def overrides_of(backbone: str, options: argparse.Namespace) -> list[str]:
    """Return the settings that both engines run with."""
    return [
        f"backbone={backbone}",
        f"method.d={slash_d(backbone)}",
        f"task.train_limit={options.clients * options.examples}",
        "task.eval_limit=64",
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"engine.workers={options.workers}",  # only for Ray
        "output.plots=false",
    ]


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", nargs="+", default=["tiny", "minilm"])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--examples", type=int, default=64, help="examples of each client (64)")
    parser.add_argument("--rounds", type=int, default=5, help="at least 2 (5)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="Ray actors")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds: expected at least 2, because the first is not an ordinary one")
    reports = []
    for backbone in options.backbone:
        reports.append(measure(backbone, options))
        record("engines", backbone, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
