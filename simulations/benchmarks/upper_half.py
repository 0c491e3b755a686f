"""Time, memory and score of methods on the upper half of the blocks against all blocks.

Below the first changed block the hidden states of a text are constant, so they are computed once
and cached (`engine.cache_mb`), and backpropagation stops there. Each run is a federation in a fresh
process, alternating all blocks and the upper half, for each method, task and seed. Seconds are CPU
seconds of training and evaluation; memory is the peak of the process. Finished runs are read from
`--scratch`, so the benchmark can be resumed.

Example:
    python -m simulations.benchmarks.upper_half --scratch /tmp/upper_half
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from fedpeft.experiment.config import Experiment
from simulations.benchmarks.common import Report, Row, arguments_of, child_json, record, script
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.short_runs import kept
from simulations.simulation import prepare, simulate

#: Name of a variant -> its settings.
VARIANTS = {"all blocks": "method.layers=all", "upper half": "method.layers=upper half"}
METHODS = ("slash", "lora")
TASKS = ("sst2", "stsb")


def measure_process(settings: Sequence[str]) -> None:
    """Run one federation in this process; print score, CPU seconds and peak memory as JSON."""
    experiment = Experiment.load("", settings)
    with tempfile.TemporaryDirectory() as scratch:
        folder, _ = prepare(experiment, Path(scratch) / "run")
        ready = time.process_time()
        result = simulate(folder, experiment)
    seconds = time.process_time() - ready
    print(json.dumps({"score": result["score"], "cpu": seconds, "peak": resident("VmHWM")}))


def measured(settings: Sequence[str], folder: Path) -> Row:
    """Return the figures of one run, from its file or from a new process."""

    def figures() -> Row:
        code = "import sys; from simulations.benchmarks.upper_half import measure_process as m; "
        return dict(child_json(code + "m(sys.argv[1:])", *settings))

    return kept(settings, folder, figures)


def settings_of(options: argparse.Namespace, task: str, method: str, seed: int) -> list[str]:
    """Return the settings that all variants of a run share."""
    return [
        f"seed={seed}",
        f"backbone={options.backbone}",
        f"task.name={task}",
        *([f"task.path={options.glue}"] if options.glue else []),
        f"task.train_limit={options.examples}",
        f"task.eval_limit={options.held_out}",
        f"method.name={method}",
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"output.eval_every={options.rounds}",
        f"engine.threads={options.threads}",
        f"engine.autocast={options.autocast}",
        "engine.device=cpu",
        "output.plots=false",
    ]


def row_of(task: str, method: str, runs: dict[str, list[Row]]) -> list[Row]:
    """Return one row of the table for each variant; differences and ratios pair the seeds."""
    rows = []
    for variant, figures in runs.items():
        pairs = list(zip(figures, runs["all blocks"], strict=True))
        gains = [one["score"] - other["score"] for one, other in pairs]
        rows.append(
            {
                "task": task,
                "method": method,
                "blocks": variant,
                "score": round(mean(run["score"] for run in figures), 4),
                "over all blocks": round(mean(gains), 4),
                "deviation": round(stdev(gains), 4) if len(gains) > 1 else 0.0,
                "CPU s": round(mean(run["cpu"] for run in figures), 1),
                "of all blocks": round(mean(one["cpu"] / other["cpu"] for one, other in pairs), 3),
                "peak MB": round(mean(run["peak"] for run in figures)),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 3)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: download")
    parser.add_argument("--examples", type=int, default=800, help="training examples (800)")
    parser.add_argument("--held-out", type=int, default=500, help="evaluation examples (500)")
    parser.add_argument("--clients", type=int, default=5, help="clients (5)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of one epoch (8)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--autocast", default="bfloat16", help="bfloat16 (default), off")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--scratch", type=Path, required=True, help="folder of finished runs")
    options = parser.parse_args(arguments)
    table: list[Row] = []
    raw: dict[str, dict[str, list[Row]]] = {}
    for task, method in product(options.tasks, options.methods):
        runs: dict[str, list[Row]] = {variant: [] for variant in VARIANTS}
        for seed, (variant, layers) in product(range(options.repeats), VARIANTS.items()):
            settings = [*settings_of(options, task, method, seed), layers]
            runs[variant].append(measured(settings, options.scratch))
        raw[f"{task}, {method}"] = runs
        table += row_of(task, method, runs)
    names = ("backbone", "examples", "held_out", "clients", "rounds", "threads", "autocast")
    facts = {"score": "accuracy (SST-2), Pearson correlation (STS-B), after the last round"}
    report = Report({name: getattr(options, name) for name in names}, table, facts, raw)
    record("upper_half", options.backbone, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
