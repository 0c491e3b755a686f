"""A whole simulation, start-up included: ours beside Flower's on Ray and pfl-research's.

100 clients x 10 rounds of SLaSh, one local epoch, each side a fresh process, in turns. All train
the same: backbone from one folder, start, texts, the batches in the clients' own order, AdamW. All
must end in (about) the same vector, else the comparison is void and the script fails.

- fedpeft: ``fedpeft simulate`` as a user starts it. It alone makes and tokenises the texts and
  draws the batches; the others read them from files made before.
- fedpeft on Ray: the same apps in Flower's simulation (``engine.kind = "ray"``).
- Flower on Ray: apps as a Flower user writes them (``parts.peer_flower``).
- pfl: pfl-research (``parts.peer_pfl``), which needs an environment of its own; not measured
  without.

Every side may use all cores: ours and pfl with torch's threads, Ray with one worker a core. CPU
seconds are those of all processes, Ray's daemons too (``usage``).

Example:
    python -m simulations.benchmarks.peers --pfl /tmp/pfl/bin/python
    python -m simulations.benchmarks.peers --backbone tiny --clients 10 --rounds 2
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from server.runfolder import VECTOR
from simulations.benchmarks.common import (
    APART,
    Report,
    Row,
    arguments_of,
    child,
    compare,
    difference,
    record,
    script,
    slash_d,
)
from simulations.benchmarks.engines import QUIET
from simulations.benchmarks.parts.peer_files import prepare, save_backbone
from simulations.benchmarks.parts.usage import Usage, usage_of

ROOT = Path(__file__).resolve().parents[2]
OURS = "fedpeft"
#: (backbone, side, seconds) -> the least ratio that is aimed at.
TARGETS = {
    ("tiny", "Flower on Ray", "wall"): 3,
    ("tiny", "fedpeft on Ray", "wall"): 3,
    ("minilm", "Flower on Ray", "wall"): 1,
    ("minilm", "fedpeft on Ray", "wall"): 1,
    ("tiny", "pfl", "cpu"): 1,
    ("minilm", "pfl", "cpu"): 1,
}


#: The most that final vectors may be apart, relative to the update. AdamW makes much of rounding:
#: on tiny, float32 sets our own cohorts and single clients 2e-3 to 4e-3 apart, float64 1e-12.
ROUNDED = 1e-2


@dataclass(frozen=True)
class Run:
    """What one run took, and the task vector [P] that it ended in."""

    usage: Usage
    vector: np.ndarray


def experiment_of(backbone: str, folder: Path, options: Namespace) -> list[str]:
    """Return the settings of the run."""
    return [
        f"backbone={folder / 'backbone'}",
        "representation=mean",
        f"method.d={slash_d(backbone)}",
        f"task.train_limit={options.clients * options.examples}",
        "task.eval_limit=16",
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"local.batch_size={options.batch}",
        "local.schedule=constant",
        "federation.node_wait=600",  # Ray may take long to start
        f"output.eval_every={options.rounds + 1}",  # the last round is always evaluated
        "output.plots=false",
    ]


def sides_of(
    overrides: Sequence[str], folder: Path, options: Namespace
) -> dict[str, Callable[[Path], Run]]:
    """Return how each side runs, given a path for its result."""

    def ours(*more: str) -> Callable[[Path], Run]:
        settings = [part for each in (*overrides, *more) for part in ("-s", each)]
        command = child("from fedpeft.cli import main; main()", "simulate", *settings, "--out")
        return lambda out: Run(
            usage_of([*command, str(out)], QUIET), load_file(out / VECTOR)["vector"]
        )

    def other(python: str, module: str, *more: str) -> Callable[[Path], Run]:
        code = f"import sys; from simulations.benchmarks.parts import {module} as side"
        command = [python, "-c", f"{code}; side.main(sys.argv[1:])", str(folder)]

        def run(out: Path) -> Run:
            file = out.with_suffix(".npy")
            usage = usage_of([*command, str(file), *more], QUIET | {"PYTHONPATH": str(ROOT)})
            return Run(usage, np.load(file))

        return run

    workers = str(os.cpu_count())
    sides = {
        OURS: ours(),
        "fedpeft on Ray": ours("engine.kind=ray", f"engine.workers={workers}"),
        "Flower on Ray": other(sys.executable, "peer_flower", workers),
    }
    return sides | ({"pfl": other(options.pfl, "peer_pfl")} if options.pfl else {})


def measure(backbone: str, options: Namespace) -> Report:
    """Run all sides in turns.

    Raises:
        SystemExit: they do not end in the same vector.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_backbone(backbone, folder / "backbone")
        overrides = experiment_of(backbone, folder, options)
        start = prepare(overrides, folder)
        sides, numbers = sides_of(overrides, folder, options), count()
        found: dict[str, list[Run]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, run in sides.items():
                found[side].append(run(folder / str(next(numbers))))
    apart = {
        side: max(difference(run.vector, found[OURS][0].vector, start) for run in runs)
        for side, runs in found.items()
    }
    for side, distance in apart.items():
        if not distance <= ROUNDED:
            raise SystemExit(f"{side} ends {distance:.2g} apart from {OURS}: not the same training")
    return report(
        backbone,
        {side: [run.usage for run in runs] for side, runs in found.items()},
        max(apart.values()),
        options,
    )


def report(
    backbone: str, found: dict[str, list[Usage]], apart: float, options: Namespace
) -> Report:
    """Return a row for each other side and kind of seconds."""
    table: list[Row] = []
    names = ("s", f"s of {OURS}")
    for side, runs in found.items():
        if side == OURS:
            continue
        for kind, figure in (("wall", "wall s"), ("cpu", "CPU s")):
            both = [[getattr(each, kind) for each in own] for own in (runs, found[OURS])]
            row = compare(f"{side}: {figure}", names, *both)
            table.append(row | {"at least": TARGETS.get((backbone, side, kind), "-")})
    facts = {"ratio": f"to {OURS}, of each turn", APART: apart}
    if "pfl" not in found:
        facts["pfl"] = "not measured: --pfl names no Python that has it"
    settings = {name: getattr(options, name) for name in ("clients", "rounds", "examples", "batch")}
    settings |= {"backbone": backbone, "repeats": options.repeats}
    raw = {
        side: [{"wall": each.wall, "cpu": each.cpu} for each in runs]
        for side, runs in found.items()
    }
    return Report(settings, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", nargs="+", default=["tiny", "minilm"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=16, help="of each client (16)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pfl", default="", help="Python of an environment with pfl and torch")
    options = parser.parse_args(arguments)
    reports = []
    for backbone in options.backbone:
        reports.append(measure(backbone, options))
        record("peers", backbone, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
