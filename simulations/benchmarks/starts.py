"""Score and bytes of heads that start from sums, by codec; and the time of the start.

Each codec is a run with one step of training: its result has the score of the start. The time is
that of a run with the start less that of one without it, as a share of an epoch: a run of two
rounds less one of one round, of one epoch each.

Example:
    python -m simulations.benchmarks.starts --scratch /tmp/starts
    python -m simulations.benchmarks.starts --scratch /tmp/starts --case "SST-2, 4,000"
    -s task.name=sst2 -s task.path=../shared/data/glue/SST-2 -s task.train_limit=4000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev

from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, slash_d, timed
from simulations.benchmarks.parts.short_runs import kept, result_of

#: Codecs of class sums and of second moments.
CODECS = (
    ("float32", "float32"),
    ("float32", "eden8"),
    ("float32", "eden4"),
    ("float32", "eden2"),
    *(("eden8", f"pca{count}") for count in (64, 48, 32, 16)),
    ("eden8", "eden1"),
    ("float32", "none"),
)


def settings_of(options: argparse.Namespace, *more: str) -> list[str]:
    """Return the settings of a run."""
    read = [f"backbone={options.backbone}", "method.name=linear", *options.settings]
    chosen = planned(Experiment.load("", read))
    return [
        f"backbone={options.backbone}",
        f"representation={chosen.representation}",
        f"task.pairs={chosen.task.pairs}",
        "head.start=sums",
        "federation.rounds=1",
        "engine.threads=1",
        "engine.device=cpu",
        "output.plots=false",
        *options.settings,
        *more,
    ]


def row(options: argparse.Namespace, sums: str, moments: str) -> Row:
    """Return a row of the table: means over seeds."""
    starts = []
    for seed in range(options.repeats):
        settings = settings_of(
            options,
            *("local.steps=1", "method.name=linear", f"seed={seed}"),
            *(f"head.sums={sums}", f"head.moments={moments}"),
        )
        starts.append(kept(settings, options.scratch, partial(start_of, settings)))
    scores = [100 * start["score"] for start in starts]
    return {
        "head.sums": sums,
        "head.moments": moments,
        "bytes up": starts[0]["bytes"],
        "score": round(mean(scores), 2),
        "deviation": round(stdev(scores), 2) if len(scores) > 1 else 0.0,
        "loss": round(mean(start["loss"] for start in starts), 3),
    }


def start_of(settings: Sequence[str]) -> Row:
    """Return score and loss of a run's start, and the bytes that a client sent for it."""
    result, asked = result_of(settings), Experiment.load("", settings).clients_per_round
    start, sent = result["start"], result["bytes"]["start"]["up"]["payload"]
    return {"score": start["score"], "loss": start["eval_loss"], "bytes": sent // asked}


def shares(options: argparse.Namespace) -> list[float]:
    """Return the times of starts as shares of an epoch, after a run that is not counted."""
    once = settings_of(options, f"method.d={slash_d(options.backbone)}")
    random = [*once, "head.start=random"]
    twice = [*random, "federation.rounds=2"]
    result_of(random)
    found = []
    for _ in range(options.repeats):
        seconds = [timed(partial(result_of, each))[0].wall for each in (random, once, twice)]
        found.append((seconds[1] - seconds[0]) / (seconds[2] - seconds[0]))
    return found


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 3)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("-s", dest="settings", action="append", default=[], help="KEY=VALUE")
    parser.add_argument("--case", default="made-up reviews", help="name of the case")
    parser.add_argument("--scratch", type=Path, required=True, help="folder of finished runs")
    options = parser.parse_args(arguments)
    table, measured = [row(options, *codecs) for codecs in CODECS], shares(options)
    facts = {
        "bytes up": "payload of one client",
        "deviation": "over seeds: another partition, and other noise of the codecs",
        "time of the start, as a share of an epoch": round(median(measured), 2),
    }
    names = ("backbone", "settings", "repeats")
    settings = {name: getattr(options, name) for name in names}
    report = Report(settings, table, facts, {"shares": measured})
    record("starts", options.case, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
