"""Score against epsilon: the same federation without privacy and with DP-SGD at each client.

Every run has a run folder in --work, like those of ``fedpeft simulate``; finished runs are not
repeated, unfinished ones resume. Tasks can run in parallel processes. Noise comes from the secure
source, so repeated runs differ within the reported spread.

Example:
    python -m simulations.benchmarks.private_scores --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RESULT
from fedpeft.runs.vectorfile import EXPERIMENT
from fedpeft.runtime import runtime_of
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.methods import majority_of
from simulations.simulation import prepare, simulate

SHARED = [
    "federation.clients=10",
    "engine.threads=1",
    "engine.autocast=bfloat16",
    "output.eval_every=100",  # only at the end
    "output.plots=false",
]
#: Changes of the defaults. QNLI needs many sequential steps, so two clients per round.
TASKS = {
    "sst2": [
        "task.train_limit=20000",
        "federation.rounds=8",
        "local.steps=3",
        "local.batch_size=60",
    ],
    "qnli": [
        "task.eval_limit=1000",
        "task.max_length=64",
        "federation.rounds=5",
        "federation.per_round=2",
        "local.steps=40",
        "local.batch_size=16",
    ],
}
FOLDERS = {"sst2": "SST-2", "qnli": "QNLI"}
NONE = "inf"
#: (task, method) -> optimizer, learning rate and schedule without and with privacy, from a few
#: trials with seed 0.
OPTIMIZERS = {
    ("sst2", "slash"): ("sgd 1 linear", "sgd 3 constant"),
    ("sst2", "lora"): ("sgd 0.5 linear", "sgd 3 constant"),
    ("qnli", "slash"): ("adamw 1e-2 linear", "sgd 1 constant"),
    ("qnli", "lora"): ("adamw 2e-3 linear", "sgd 1 constant"),
}


def overrides_of(task: str, method: str, epsilon: str, seed: int, glue: str) -> list[str]:
    """Return the settings of one run."""
    path = [f"task.path={glue}/{FOLDERS[task]}"] if glue else []
    names = [f"task.name={task}", f"method.name={method}", f"seed={seed}"]
    plain, private = OPTIMIZERS[task, method]
    protect = []
    if epsilon != NONE:
        protect = ["privacy.unit=example", f"privacy.epsilon={epsilon}"]
        if task == "qnli":  # a client may be sampled twice as often as the mean
            protect.append("privacy.participations=2")
    used = (plain if epsilon == NONE else private).split()
    keys = ("optimizer", "lr", "schedule")
    how = [f"local.{key}={value}" for key, value in zip(keys, used, strict=True)]
    return [*names, *path, *SHARED, *TASKS[task], *how, *protect]


def run(overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """Return the result of a run from its folder, or simulate it."""
    if not (path / RESULT).exists():
        experiment = Experiment.load("", overrides)
        folder, _ = prepare(experiment, path, resume=(path / EXPERIMENT).exists())
        simulate(folder, experiment)
    result: dict[str, Any] = json.loads((path / RESULT).read_text(encoding="utf-8"))
    print(f"{path.name}: {result['score']:.4f} in {result['seconds']:.0f} s", flush=True)
    return result


def report(task: str, options: argparse.Namespace) -> Report:
    """Run the unfinished runs of one task, and build its table."""
    cells = [*product(options.methods, options.epsilons)]
    # Seed by seed, so that partial results cover every cell.
    runs = [(seed, *cell) for seed in range(options.seeds) for cell in cells]

    done = {}
    for seed, method, epsilon in runs:
        overrides = overrides_of(task, method, epsilon, seed, options.glue)
        path = options.work / f"{task}-{method}-{epsilon}-{seed}"
        done[seed, method, epsilon] = run(overrides, path)
    results = {cell: [done[seed, *cell] for seed in range(options.seeds)] for cell in cells}
    table = [_row(task, *cell, runs) for cell, runs in results.items()]
    settings = {"overrides": " ".join([f"task.name={task}", *SHARED, *TASKS[task]])}
    experiment = Experiment.load("", overrides_of(task, "slash", NONE, 0, options.glue))
    facts = {
        "majority class": majority_of(runtime_of(experiment)),
        "score": "on the dev set after the last round, mean over seeds; the optimisers' settings "
        "were chosen on it, too, with seed 0, and that choice is not in epsilon",
    }
    raw = {"-".join(cell): [_short(run) for run in runs] for cell, runs in results.items()}
    return Report(settings, table, facts, raw)


def _row(task: str, method: str, epsilon: str, results: Sequence[dict[str, Any]]) -> Row:
    plain, private = OPTIMIZERS[task, method]
    scores = [run["score"] for run in results]
    spent = [run["privacy"]["example"] for run in results if run["privacy"]]
    worst = max(spent, key=lambda loss: loss["epsilon"]) if spent else {}
    return {
        "method": method,
        "target epsilon": epsilon,
        "optimiser": plain if epsilon == NONE else private,
        results[0]["metric"]: round(mean(scores), 4),
        "deviation": round(stdev(scores), 4) if len(scores) > 1 else 0.0,
        "seeds": len(scores),
        "epsilon spent": round(worst["epsilon"], 3) if spent else "-",
        **{key: worst.get(key, "-") for key in ("delta", "noise_multiplier", "steps")},
        "q": worst.get("sampling_rate", "-"),
    }


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("score", "metrics", "epsilon", "privacy", "seconds")}


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the study from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=["slash", "lora"])
    parser.add_argument("--epsilons", nargs="+", default=[NONE, "8", "3", "1"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--glue", default="", help="folder of GLUE; default: download")
    parser.add_argument("--work", type=Path, default=Path("runs/private-scores"))
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    reports = []
    for task in options.tasks:
        reports.append(report(task, options))
        record("private_scores", task, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
