"""All methods trained on all data in one place: score, size, seconds per step, memory.

Every method uses its defaults, and every run is a separate process. Scores are over several seeds,
which also draw the training examples; two runs go in parallel. Time and memory are measured
afterwards, one process at a time: steps of the method and of full fine-tuning alternate on the same
batches. Finished runs are kept in --work and not repeated.

Example:
    python -m simulations.benchmarks.methods --glue ../shared/data/glue
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

import fedpeft
from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from fedpeft.methods import REGISTRY
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.tasks.metrics import scores
from fedpeft.training import evaluate, train_cohort
from simulations.benchmarks.common import Report, Row, arguments_of, child_json, record, script
from simulations.benchmarks.memory import resident

STEPS = 5  # of one side per turn
REFERENCE = "full"


def experiment_of(overrides: Iterable[str]) -> Experiment:
    """Return the experiment of one run; one client has all the data."""
    fixed = ["federation.clients=1", "federation.rounds=1", "engine.threads=1", "engine.device=cpu"]
    return Experiment.load("", [*overrides, *fixed])


def score_process(overrides: Sequence[str]) -> None:
    """Train and evaluate one method in this process; print the outcome as JSON."""
    experiment = experiment_of(overrides)
    runtime = runtime_of(experiment)
    started = time.perf_counter()
    trained = train(runtime, experiment)
    seconds = time.perf_counter() - started
    evaluation = evaluate(runtime.model, trained, runtime.dev)
    metrics = scores(evaluation.statistics, runtime.task.info.kind)
    layout = runtime.model.layout
    print(
        json.dumps(
            {
                "score": metrics[runtime.task.info.metric],
                "metric": runtime.task.info.metric,
                "parameters": layout.size - layout.head_size,
                "head": layout.head_size,
                "seconds": seconds,
                "majority": majority_of(runtime),
            }
        )
    )


def majority_of(runtime: Runtime) -> float | None:
    """Return the accuracy of always predicting the majority class; None for other tasks."""
    if runtime.task.info.kind != "classes":
        return None
    return float(np.bincount(runtime.dev.labels).max() / len(runtime.dev))


def train(runtime: Runtime, experiment: Experiment, steps: int = 0) -> np.ndarray:
    """Return the task vector [P] after local training on everything, or after so many steps."""
    local = experiment.local
    if steps:
        local = local.model_copy(update={"steps": steps})
    start = runtime.parameters.initial(experiment.seed)
    when = When(experiment.seed, 1, 1)
    return train_cohort(runtime.model, start, [runtime.train], [0], local, when).vectors[0]


def cost_process(arguments: Sequence[str]) -> None:
    """Time steps of two methods alternately in this process; print the seconds a step as JSON."""
    repeats, method, *overrides = arguments
    experiments = [experiment_of([*overrides, f"method.name={n}"]) for n in (method, REFERENCE)]
    runtimes = [runtime_of(experiment) for experiment in experiments]
    seconds: list[list[float]] = [[], []]
    for turn in range(int(repeats) + 1):
        for side, (runtime, experiment) in enumerate(zip(runtimes, experiments, strict=True)):
            started = time.perf_counter()
            train(runtime, experiment, STEPS)
            if turn:  # the first turn is warm-up
                seconds[side].append((time.perf_counter() - started) / STEPS)
    print(json.dumps({"method": seconds[0], "reference": seconds[1]}))


def memory_process(overrides: Sequence[str]) -> None:
    """Run a few steps of one method in this process; print its peak memory in MB as JSON."""
    experiment = experiment_of(overrides)
    train(runtime_of(experiment), experiment, STEPS)
    print(json.dumps({"peak": resident("VmHWM")}))


def in_process(function: str, arguments: Sequence[str], kept: Path) -> dict[str, Any]:
    """Return the output of a function of this module in a fresh process, now or before.

    What is kept counts only for the same arguments and source.
    """
    called = [function, *arguments]
    if kept.exists():
        stored = json.loads(kept.read_text(encoding="utf-8"))
        if (stored["arguments"], stored["result"]["source"]) == (called, source_digest()):
            return stored["result"]
    code = (
        f"import sys; from simulations.benchmarks import methods; methods.{function}(sys.argv[1:])"
    )
    result = {**child_json(code, *arguments), "source": source_digest()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, {"arguments": called, "result": result})
    print(f"{kept.stem}: {json.dumps(result)[:100]}", flush=True)
    return result


@cache
def source_digest() -> str:
    """Return the first digits of SHA-256 over the library's source."""
    total = hashlib.sha256()
    for path in sorted(Path(fedpeft.__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def overrides_of(options: Namespace) -> list[str]:
    """Return the settings that all methods share."""
    path = [f"task.path={options.glue}"] if options.glue else []
    return [
        f"backbone={options.backbone}",
        f"task.name={options.task}",
        *path,
        f"task.train_limit={options.examples}",
        f"local.epochs={options.epochs}",
        f"local.batch_size={options.batch}",
    ]


def score_runs(options: Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of every method, one for each seed."""
    shared = overrides_of(options)

    def one(run: tuple[int, str]) -> dict[str, Any]:
        seed, name = run
        arguments = [*shared, f"method.name={name}", f"seed={seed}"]
        return in_process("score_process", arguments, options.work / f"{name}-{seed}.json")

    runs = [(seed, name) for seed in range(options.seeds) for name in options.methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = dict(zip(runs, pool.map(one, runs), strict=True))
    return {name: [done[seed, name] for seed in range(options.seeds)] for name in options.methods}


def cost_runs(options: Namespace, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the step times of a method and of full fine-tuning, and its peak memory."""
    shared = overrides_of(options)
    timing = in_process(
        "cost_process", [str(options.repeats), name, *shared], options.work / f"{name}-cost.json"
    )
    memory = in_process(
        "memory_process",
        [*shared, f"method.name={name}"],
        options.work / f"{name}-memory.json",
    )
    return timing, memory


def report(options: Namespace) -> Report:
    """Run everything that is not finished, and build the table."""
    runs = score_runs(options)
    costs = {name: cost_runs(options, name) for name in options.methods}
    reference = cost_runs(options, REFERENCE)[1]["peak"]
    table = []
    for name, results in runs.items():
        timing, memory = costs[name]
        values = [run["score"] for run in results]
        ratios = [a / b for a, b in zip(timing["method"], timing["reference"], strict=True)]
        row: Row = {
            "method": name,
            "parameters": results[0]["parameters"],
            "head": results[0]["head"],
            results[0]["metric"]: round(mean(values), 4),
            "deviation": round(stdev(values), 4) if len(values) > 1 else 0.0,
            "seconds a step": round(median(timing["method"]), 4),
            f"time of {REFERENCE}": round(median(ratios), 3),
            "peak MB": round(memory["peak"]),
            f"memory of {REFERENCE}": round(memory["peak"] / reference, 3),
        }
        table.append(row)
    settings = {"overrides": " ".join(overrides_of(options)), "seeds": options.seeds}
    everything = [*chain(*runs.values()), *chain(*costs.values())]
    facts = {
        "accuracy of the majority class": runs[options.methods[0]][0]["majority"],
        "versions of the source": ", ".join(sorted({run["source"] for run in everything})),
    }
    return Report(settings, table, facts, {"scores": runs, "costs": costs})


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--methods", nargs="+", default=list(REGISTRY), help="default: all")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--task", default="sst2", help="name of the task (sst2)")
    parser.add_argument("--glue", default="", help="folder of the task's files; empty = the hub")
    parser.add_argument("--examples", type=int, default=2000, help="training examples (2000)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="parallel score runs (2)")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmark-methods"))
    options = parser.parse_args(arguments)
    result = report(options)
    record("methods", f"{options.backbone}, {options.task}", result, arguments, options.results)
    return result


if __name__ == "__main__":
    script(main)
