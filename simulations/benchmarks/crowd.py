"""Start, memory and time a round of simulations with 100 to a million clients.

Every federation runs in a process of its own: 100 clients a round (all of 100) train an epoch of
two examples each on the tiny backbone. A start lasts from the start of the process to the first
round, imports included. With ``--engine ray`` the clients train on actors, each a process with its
own copy of the data.

Aims for a million clients: a start below 15 s, all of it below 60 s and 1 GB.

Example:
    python -m simulations.benchmarks.crowd
    python -m simulations.benchmarks.crowd --engine ray --sizes 1000000
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from fedpeft.experiment.config import Experiment
from simulations.benchmarks.common import Report, Row, arguments_of, child, record, script
from simulations.benchmarks.parts.usage import usage_of

AIMS = "a million clients start in 15 s and end in 60 s, with 1 GB"
ASKED, EXAMPLES, ROUNDS = 100, 2, 3
_CODE = "import sys; from simulations.benchmarks.crowd import run; run(*sys.argv[1:])"


def experiment_of(clients: int, engine: str, asked: int) -> Experiment:
    """Return the experiment of a federation."""
    return Experiment.load(
        "",
        [
            "backbone=tiny",
            "task.name=synthetic/crowd",
            f"task.train_limit={clients * EXAMPLES}",
            "task.eval_limit=200",
            "method.d=max",
            f"federation.clients={clients}",
            f"federation.per_round={min(asked, clients)}",
            f"federation.rounds={ROUNDS}",
            "engine.device=cpu",
            f"engine.kind={engine}",
            *(["engine.workers=2"] if engine == "ray" else []),
            "output.plots=false",
        ],
    )


def run(clients: str, engine: str, asked: str, began: str) -> None:
    """Run a federation in this process and print its figures as JSON.

    Args:
        clients: of the federation.
        engine: local or ray.
        asked: clients a round.
        began: the time at which this process was started.
    """
    from simulations.simulation import prepare, quiet, simulate

    experiment = experiment_of(int(clients), engine, int(asked))
    with tempfile.TemporaryDirectory() as scratch, quiet():
        folder, _ = prepare(experiment, Path(scratch) / "run")
        simulate(folder, experiment)
        ended, rounds = time.time(), [line["seconds"] for line in folder.rounds()]
        written = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    start = ended - float(began) - sum(rounds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {"start": start, "rounds": rounds, "memory": memory, "written": written / 1e6}
    print(json.dumps(figures))


def row_of(clients: int, engine: str, asked: int) -> tuple[Row, dict[str, object]]:
    """Run a federation in a process of its own; return its row and its figures."""
    command = child(_CODE, str(clients), engine, str(asked), str(time.time()))
    usage = usage_of(command, {"TQDM_DISABLE": "1"})
    figures = json.loads(next(line for line in usage.output.splitlines() if line.startswith("{")))
    row = {
        "clients": clients,
        "asked": min(asked, clients),
        "start, s": round(figures["start"], 2),
        "s a round": round(median(figures["rounds"]), 3),
        "whole process, s": round(usage.wall, 2),
        "MB of memory": round(figures["memory"]),
        "MB written": round(figures["written"], 3),
    }
    return row, figures


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    sizes = [100, 1000, 10_000, 100_000, 1_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="clients")
    parser.add_argument("--asked", type=int, default=ASKED, help="clients a round (100)")
    parser.add_argument("--engine", choices=["local", "ray"], default="local", help="engine")
    options = parser.parse_args(arguments)
    report = measured(options)
    case = f"engine {options.engine}, {options.asked} a round"
    record("crowd", case, report, arguments, options.results)
    return report


def measured(options: argparse.Namespace) -> Report:
    """Return the report of federations of all sizes."""
    found = {size: row_of(size, options.engine, options.asked) for size in options.sizes}
    settings = {"backbone": "tiny", "examples a client": EXAMPLES, "rounds": ROUNDS}
    raw = {f"{size} clients": figures for size, (_, figures) in found.items()}
    facts = {"aims": AIMS, "memory": "of the process with the server, at most"}
    return Report(settings, [row for row, _ in found.values()], facts, raw)


if __name__ == "__main__":
    script(main)
