"""Savings from caching hidden states that all task vectors share, and from avoiding padding.

Caching: one client trains ten local epochs with and without cached hidden states at the first
changed block (`engine.cache_mb`), alternating, each time from an empty cache. SLaSh shifts only the
upper half of the blocks. Padding: the share of padding among the tokens that pass a block, with
packed texts, with texts split by length (methods that add tokens), and in plain batches of texts of
similar length, for the batches of a federation's first round.

Example:
    python -m simulations.benchmarks.constant --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients.data.partitioning import partition
from fedpeft.batches.passes import parts_by_length
from fedpeft.experiment.config import Experiment
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import plan_batches, train_cohort
from simulations.benchmarks.common import (
    CLOSE,
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    difference,
    record,
    script,
    timed,
)

METHODS: dict[str, list[str]] = {"linear": [], "slash": ["method.layers=upper half"]}
TARGETS = {"linear": 10, "slash": 1.4}
TASKS = ("sst2", "qnli", "mrpc", "stsb", "rte")
CLIENTS = 10


def runtime_for(options: argparse.Namespace, task: str, method: str, examples: int) -> Runtime:
    """Return the runtime of a method on so many training examples of a task."""
    settings = [
        f"backbone={options.backbone}",
        f"task.name={task}",
        f"task.path={options.glue}",
        f"task.train_limit={examples}",
        "task.eval_limit=64",
        f"method.name={method}",
        *METHODS.get(method, []),
        f"local.epochs={options.epochs}",
        f"federation.clients={CLIENTS}",
        f"engine.threads={options.threads}",
        "engine.device=cpu",
    ]
    return runtime_of(Experiment.load("", settings))


def caching_row(method: str, options: argparse.Namespace, raw: dict[str, object]) -> Row:
    """Time one client's training with and without cached states.

    Raises:
        SystemExit: the two do not end in the same vector.
    """
    runtime = runtime_for(options, "sst2", method, options.examples)
    start = runtime.parameters.initial(0)
    vectors = {}

    def train(most: int) -> float:
        runtime.model.keep_states(most)
        local, when = runtime.experiment.local, When(0, 1, 1)
        took, trained = timed(
            lambda: train_cohort(runtime.model, start, [runtime.train], [0], local, when)
        )
        vectors[most] = trained.vectors[0]
        return took.wall

    def without() -> float:
        return train(0)

    def kept() -> float:
        return train(1 << 30)

    without(), kept()
    apart = difference(vectors[1 << 30], vectors[0], start)
    if not apart <= CLOSE:
        raise SystemExit(f"{method}: {apart:.2g} apart with kept states: not the same training")
    above, below = alternate(without, kept, options.repeats)
    raw[method] = {"without": above, "kept": below, "apart": apart}
    row = compare(f"{method}, {options.epochs} epochs", ("s without", "s kept"), above, below)
    return {**row, "target": TARGETS.get(method, "-")}


def padding_row(task: str, options: argparse.Namespace) -> Row:
    """Return the share of padding in a federation's first round."""
    runtime = runtime_for(options, task, "jr_warp", options.examples * CLIENTS)
    plain, parts = [0, 0], [0, 0]
    for client, rows in enumerate(partition(runtime.task, runtime.experiment)):
        data = runtime.train.select(rows)
        local = runtime.experiment.local.model_copy(update={"epochs": 1})
        for batch in plan_batches(client, data, local, When(0, 1, 1)):
            _add(plain, data.lengths[batch])
            for (part,) in parts_by_length([data], [batch], runtime.model.costs.per_pass):
                _add(parts, data.lengths[part])
    return {
        "task": task,
        "examples a client": options.examples,
        "plain batches, % padding": round(100 * (1 - plain[0] / plain[1]), 1),
        "parts, % padding": round(100 * (1 - parts[0] / parts[1]), 1),
        "packed, % padding": 0.0,
    }


def _add(sums: list[int], lengths: np.ndarray) -> None:
    """Count the tokens of a pass, without and with padding."""
    sums[0] += int(lengths.sum())
    sums[1] += int(lengths.max()) * len(lengths)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, required=True, help="folder of GLUE files")
    parser.add_argument("--examples", type=int, default=200, help="examples of a client (200)")
    parser.add_argument("--epochs", type=int, default=10, help="local epochs (10)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    options = parser.parse_args(arguments)
    about = {name: getattr(options, name) for name in ("backbone", "examples", "threads")}
    raw: dict[str, object] = {}
    table = [caching_row(method, options, raw) for method in options.methods]
    facts = {"ratio": "without / with kept states, of each pair of runs, of one client on SST-2"}
    caching = Report({**about, "repeats": options.repeats}, table, facts, raw)
    record("constant", f"kept states, {options.backbone}", caching, arguments, options.results)
    table = [padding_row(task, options) for task in options.tasks]
    facts = {"packed": "one client's texts pass in one row; all methods but prompt and jr_warp"}
    padding = Report({**about, "clients": CLIENTS}, table, facts, {})
    record("constant", f"padding, {options.backbone}", padding, arguments, options.results)
    return [caching, padding]


if __name__ == "__main__":
    script(main)
