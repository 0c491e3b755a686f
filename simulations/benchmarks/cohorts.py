"""Clients trained in one batch: texts per second and memory, by the number of clients.

The same clients train from the same task vector, K of them in each batch, for several K in turns.
The script fails unless the final vectors equal those of the smallest K, in float32 up to rounding,
in bfloat16 up to a fifth of the update.

Example:
    python -m simulations.benchmarks.cohorts --clients 8 --sizes 1 2 4 8
    python -m simulations.benchmarks.cohorts --device cuda --backbone random-base
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from statistics import median

import numpy as np

from fedpeft.methods import method_class
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import train_cohort
from simulations.benchmarks.common import (
    CLOSE,
    Report,
    Row,
    arguments_of,
    difference,
    positive,
    record,
    script,
)
from simulations.benchmarks.parts.step_parts import peak, seconds
from simulations.benchmarks.roofline import experiment_of

#: Largest difference of final vectors, relative to the update; 0.09 in bfloat16 on an H100.
SAME = {"off": CLOSE, "bfloat16": 0.2}


def trained(runtime: Runtime, size: int, options: argparse.Namespace) -> np.ndarray:
    """Train all clients, ``size`` of them together; return their vectors [clients, P]."""
    start, local = runtime.parameters.initial(0), runtime.experiment.local
    rows = np.arange(options.clients * options.texts).reshape(options.clients, -1)
    vectors = []
    for first in range(0, options.clients, size):
        clients = [*range(first, min(first + size, options.clients))]
        data = [runtime.train.select(rows[client]) for client in clients]
        cohort = train_cohort(runtime.model, start, data, clients, local, When(0, 1, 1))
        vectors.append(cohort.vectors)
    return np.concatenate(vectors)


def measure(options: argparse.Namespace) -> Report:
    """Train with every size in turns.

    Raises:
        SystemExit: a size ends in other vectors.
    """
    options.examples = options.clients * options.texts
    runtime = runtime_of(experiment_of(options.method, options.precision, options))
    device, start = runtime.backbone.device, runtime.parameters.initial(0)
    vectors = {size: trained(runtime, size, options) for size in options.sizes}
    single = vectors[min(options.sizes)]
    apart = {size: difference(each, single, start) for size, each in vectors.items()}
    if not max(apart.values()) <= SAME[options.precision]:
        raise SystemExit(f"final vectors are {max(apart.values()):.2g} apart: not the same")
    spent: dict[int, list[float]] = {size: [] for size in options.sizes}
    for _ in range(options.repeats):
        for size in options.sizes:
            spent[size].append(seconds(partial(trained, runtime, size, options), device))
    memory = {
        size: peak(partial(trained, runtime, size, options), device) for size in options.sizes
    }
    table = [_row(size, spent, apart, memory, options) for size in options.sizes]
    facts = {
        "faster": "than the smallest size, of each turn",
        "apart": "distance of the final vectors from the smallest size's, relative to the update",
        "tokens a text": round(float(runtime.train.lengths.mean()), 1),
    }
    ignored = ("results", "sizes", "glue")
    settings = {name: value for name, value in vars(options).items() if name not in ignored}
    return Report(settings, table, facts, {"seconds": spent, "apart": apart})


def _row(
    size: int,
    spent: dict[int, list[float]],
    apart: dict[int, float],
    memory: dict[int, float | str],
    options: argparse.Namespace,
) -> Row:
    single = spent[min(options.sizes)]
    ratios = [one / other for one, other in zip(single, spent[size], strict=True)]
    return {
        "clients a batch": size,
        "s": round(median(spent[size]), 3),
        "texts/s": round(options.clients * options.texts / median(spent[size]), 1),
        "faster": round(median(ratios), 2),
        "least": round(min(ratios), 2),
        "largest": round(max(ratios), 2),
        "MB on the GPU": memory[size],
        "apart": float(f"{apart[size]:.2g}"),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 3)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny, random-base")
    parser.add_argument("--glue", help="folder of GLUE files; default: synthetic texts")
    parser.add_argument("--task", default="sst2", help="GLUE task (sst2)")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of a text (128)")
    parser.add_argument("--method", default="slash", help="a grouped method (slash)")
    parser.add_argument("--clients", type=positive, default=64, help="clients (64)")
    parser.add_argument("--texts", type=positive, default=32, help="texts of each client (32)")
    parser.add_argument("--batch", type=positive, default=8, help="texts a step and client (8)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--precision", default="off", choices=SAME, help="engine.autocast (off)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    options = parser.parse_args(arguments)
    if not 1 <= min(options.sizes) <= max(options.sizes) <= options.clients:
        parser.error("expected --sizes from 1 to --clients")
    if not method_class(options.method).grouped:
        parser.error("expected a --method with several task vectors")
    report = measure(options)
    task = options.task if options.glue else "synthetic"
    case = f"{options.method}, {options.backbone}, {task}, {options.device}, {options.precision}"
    record("cohorts", case, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
