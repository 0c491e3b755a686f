"""Rounds per second of the local engine against the number of clients and against P.

Clients take one step on four examples per_client, on the tiny backbone, so the engine's overhead is
visible. First part: each round samples all clients, then 10 of them. Second part: 10 clients with
increasing length of the task vector (JR-WARP, which does the least work per number). A run has two
unmeasured rounds: the first includes the handshakes, the last an evaluation.

Ratio: milliseconds per sampled client, relative to the first row of the part.

Example:
    python -m simulations.benchmarks.scaling
    python -m simulations.benchmarks.scaling --sizes 10 100 --vectors 1000
"""

from __future__ import annotations

import logging
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedpeft.experiment.config import Experiment
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, slash_d
from simulations.simulation import prepare, simulate

BACKBONE = "tiny"
EXAMPLES = 4  # of per_client client
ASKED = 10  # clients per round, unless all are sampled


def experiment_of(clients: int, asked: int, options: Namespace, *method: str) -> Experiment:
    """Return the experiment of one run; ``asked`` clients take part in each round."""
    return Experiment.load(
        "",
        [
            f"backbone={BACKBONE}",
            *method,
            f"task.train_limit={clients * EXAMPLES}",
            "task.eval_limit=16",
            f"federation.clients={clients}",
            f"federation.per_round={asked}",
            f"federation.rounds={options.repeats + 2}",
            "local.steps=1",
            "engine.threads=1",
            "engine.device=cpu",
            f"output.eval_every={options.repeats + 3}",  # the last round is always evaluated
            "output.plots=false",
        ],
    )


def measure(experiment: Experiment) -> tuple[list[float], int]:
    """Run an experiment; return the seconds of its measured rounds, and P."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, runtime = prepare(experiment, Path(scratch) / "run")
        simulate(folder, experiment)
        return [line["seconds"] for line in folder.rounds()[1:-1]], runtime.model.layout.size


def report(experiments: Iterable[Experiment], options: Namespace) -> Report:
    """Run experiments of 10 clients or more; ratios are to the first."""
    table: list[Row] = []
    raw: dict[str, Any] = {}
    first = 0.0
    for experiment in experiments:
        clients, asked = experiment.federation.clients, experiment.clients_per_round
        seconds, size = measure(experiment)
        per_client = [1e3 * second / asked for second in seconds]
        first = first or median(per_client)
        row = {
            "clients": clients,
            "asked": asked,
            "P": size,
            "rounds a second": round(1 / median(seconds), 4),
            "ms a client": round(median(per_client), 4),
            "ratio": round(median(per_client) / first, 4),
            "least": round(min(per_client) / first, 4),
            "largest": round(max(per_client) / first, 4),
        }
        table.append(row)
        raw[f"{clients} clients, {asked} asked, P {size}"] = seconds
    settings = {
        "backbone": BACKBONE,
        "examples a client": EXAMPLES,
        "local steps": 1,
        "cohort": experiment.engine.cohort,
        "torch threads": 1,
        "rounds measured": options.repeats,
    }
    return Report(settings, table, {"ratio": "of ms a client, to the first row"}, raw)


def clients_report(options: Namespace) -> Report:
    """Measure against the number of clients: all sampled, then 10 of them."""
    d = f"method.d={slash_d(BACKBONE)}"
    all_asked = [experiment_of(size, size, options, d) for size in options.sizes]
    some = [experiment_of(size, ASKED, options, d) for size in options.sizes if size > ASKED]
    return report([*all_asked, *some], options)


def vectors_report(options: Namespace) -> Report:
    """Measure against the length of the task vector."""
    methods = [("method.name=jr_warp", f"method.d={d}") for d in options.vectors]
    return report(
        [experiment_of(ASKED, ASKED, options, *per_client) for per_client in methods], options
    )


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[10, 100, 1000, 10_000], help="clients"
    )
    parser.add_argument(
        "--vectors", type=int, nargs="+", default=[100, 1000, 10_000, 100_000], help="JR-WARP's d"
    )
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    reports = []
    for part, measured in (("clients", clients_report), ("vectors", vectors_report)):
        reports.append(measured(options))
        record("scaling", part, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
