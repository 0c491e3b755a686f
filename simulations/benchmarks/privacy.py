"""Time of a DP-SGD step against a step without privacy, and memory of a large virtual batch.

Time: all sides process the same batches of texts of similar length, from rows of a client's data to
the updated task vector, alternating in one process. Without privacy: gradient, gradient clipping,
AdamW. Private: per-example gradients, clip 1, noise multiplier 1, AdamW, with seeded and with
secure noise. The third side is Opacus on the same model (``parts.opacus_step``); the script fails
unless its gradients equal fedpeft's. Then whole local training, where each side draws its batches:
Poisson samples hold texts of all lengths.

``parts.private_memory`` describes how memory is measured.

Example:
    python -m simulations.benchmarks.privacy
    python -m simulations.benchmarks.privacy --glue ../shared/data/glue
    python -m simulations.benchmarks.privacy --device cuda --backbone random-base --parts time
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.batches.batch import batches as similar
from fedpeft.privacy.noise import SecureNoise
from fedpeft.randomness import generator
from fedpeft.runtime import runtime_of
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
    synchronize,
    training,
)

TARGET = 1.15  # private / not private, wall clock, with minilm
STEPS = 4  # of one side per turn
EXAMPLES = 16  # size of the client's data in batches
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
        runtime = runtime_of(experiment_of(name, EXAMPLES * options.batch, options))
        draw = generator(runtime.experiment.seed, "benchmark")
        batches = similar(runtime.train.lengths, options.batch, draw)[:STEPS]
        plain = plain_step(runtime)
        reproducible, secure = (
            private_step(runtime, how(runtime, noise, options.batch, options.batch))
            for noise in (seeded(runtime), SecureNoise())
        )
        opacus, raw["apart"][name] = opacus_step(runtime, batches[0])
        for figure, above, below, target in (
            ("private, seeded noise / not private", reproducible, plain, TARGET),
            ("private, secure noise / not private", secure, plain, TARGET),
            ("Opacus / private, seeded noise", opacus, reproducible, "-"),
        ):
            seconds = in_turns(above, below, batches, options.repeats)
            row = compare(f"{name}: {figure}", ("s a step", "s of the other"), *seconds)
            table.append(row | {"at most": target})
            raw[row["figure"]] = seconds
        both = training(runtime, options.batch, SecureNoise()), training(runtime, options.batch)
        seconds = alternate(*both, options.repeats)
        figure = f"{name}: whole training, private / not private"
        row = compare(figure, ("s a step", "s of the other"), *seconds)
        table.append(row | {"at most": "-"})
        raw[figure] = seconds
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
    """Return the seconds per step of both sides, over all batches in each turn, after warm-up."""

    def turn(step: Step) -> None:
        for rows in batches:
            step(rows)
        synchronize()  # steps may only be queued on a GPU

    def seconds(step: Step) -> float:
        return timed(lambda: turn(step))[0].wall / len(batches)

    for step in (above, below):
        step(batches[0])
    synchronize()
    return alternate(lambda: seconds(above), lambda: seconds(below), repeats)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny, random-base")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument(
        "--glue", type=Path, help="folder of GLUE files: use SST-2, not synthetic data"
    )
    parser.add_argument(
        "--methods", nargs="+", default=TIMED, choices=TIMED, help="methods to time"
    )
    parser.add_argument("--batch", type=int, default=64, help="physical batch (64)")
    parser.add_argument("--virtual", type=int, default=2048, help="virtual batch (2048)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="default: both")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and "memory" in options.parts:
        parser.error("memory is measured on a CPU: add --parts time")
    reports = []
    for part, measure in (("time", time_report), ("memory", memory_report)):
        if part in options.parts:
            reports.append(measure(options))
            case = f"{part}, {options.backbone}, {settings_of(options)['task']}"
            case += "" if options.device == "cpu" else f", {options.device}"
            record("privacy", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
