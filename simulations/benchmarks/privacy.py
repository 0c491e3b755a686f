"""A step of DP-SGD beside a step without privacy, and what a large virtual batch needs in memory.

Time: each side does the same batches, of texts of similar length, from the rows of a client's data
to the changed task vector, in turns in one process. Without privacy: gradient, clipping of its
norm, AdamW. Private: a gradient for each example, clip 1, noise multiplier 1, AdamW, with the
seeded and with the secure noise. The third side is Opacus on the same model
(``parts.opacus_step``); its gradients must be ours, else the comparison is void and the script
fails. Then whole local training, each side with batches of its own: Poisson samples hold texts of
all lengths.

The memory of a large virtual batch is measured as ``parts.private_memory`` says.

Example:
    python -m simulations.benchmarks.privacy
    python -m simulations.benchmarks.privacy --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.privacy.noise import SecureNoise
from fedpeft.randomness import generator
from fedpeft.runtime import runtime_of
from fedpeft.tasks.batching import batches as similar
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    record,
    script,
    timed,
)
from simulations.benchmarks.parts.private_memory import memory_report
from simulations.benchmarks.parts.private_steps import (
    Step,
    experiment_of,
    how,
    opacus_step,
    plain_step,
    private_step,
    seeded,
    settings_of,
    training,
)

TARGET = 1.15  # private / not private, wall clock, with minilm
STEPS = 4  # of one side before it is the other's turn
EXAMPLES = 16  # batches that the client's data would fill
TIMED = ("slash", "jr_warp", "linear", "lora")
PARTS = ("time", "memory")


def time_report(options: argparse.Namespace) -> Report:
    """Time every method's steps.

    Raises:
        SystemExit: Opacus finds other gradients.
    """
    table: list[Row] = []
    raw: dict[str, Any] = {"apart": {}}
    for name in options.methods:
        runtime = runtime_of(experiment_of(name, EXAMPLES * options.batch, options).to_toml())
        draw = generator(runtime.experiment.seed, "benchmark")
        batches = similar(runtime.train.lengths, options.batch, draw)[:STEPS]
        plain = plain_step(runtime)
        ours, secure = (
            private_step(runtime, how(runtime, noise, options.batch, options.batch))
            for noise in (seeded(runtime), SecureNoise())
        )
        opacus, raw["apart"][name] = opacus_step(runtime, batches[0])
        for figure, above, below, target in (
            ("private, seeded noise / not private", ours, plain, TARGET),
            ("private, secure noise / not private", secure, plain, TARGET),
            ("Opacus / private, seeded noise", opacus, ours, "-"),
        ):
            found = in_turns(above, below, batches, options.repeats)
            row = compare(f"{name}: {figure}", ("s a step", "s of the other"), *found)
            table.append(row | {"at most": target})
            raw[row["figure"]] = found
        both = training(runtime, options.batch, SecureNoise()), training(runtime, options.batch)
        found = alternate(*both, options.repeats)
        figure = f"{name}: whole training, private / not private"
        row = compare(figure, ("s a step", "s of the other"), *found)
        table.append(row | {"at most": "-"})
        raw[figure] = found
    facts = {
        "ratio": f"of pairs of {STEPS} steps each, wall clock",
        "target for minilm": f"private / not private at most {TARGET}",
        "Opacus's gradients differ from ours by, relative": max(raw["apart"].values()),
        "Opacus": version("opacus"),
    }
    return Report(settings_of(options), table, facts, raw)


def in_turns(
    above: Step, below: Step, batches: Sequence[np.ndarray], repeats: int
) -> tuple[list[float], list[float]]:
    """Return the seconds a step of both sides, over all batches in each turn, once warm."""

    def seconds(step: Step) -> float:
        return timed(lambda: [step(rows) for rows in batches])[0].wall / len(batches)

    for step in (above, below):
        step(batches[0])
    return alternate(lambda: seconds(above), lambda: seconds(below), repeats)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files: SST-2 for synthetic data")
    parser.add_argument("--methods", nargs="+", default=TIMED, choices=TIMED, help="to be timed")
    parser.add_argument("--batch", type=int, default=64, help="physical batch (64)")
    parser.add_argument("--virtual", type=int, default=2048, help="virtual batch (2048)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="default: both")
    options = parser.parse_args(arguments)
    reports = []
    for part, measure in (("time", time_report), ("memory", memory_report)):
        if part in options.parts:
            reports.append(measure(options))
            case = f"{part}, {options.backbone}, {settings_of(options)['task']}"
            record("privacy", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
