"""A training step on random GPT-2 and BART of base size, beside a plain loop, and with DP-SGD.

SLaSh with d = 1024. All sides process the same batches, from rows of a client's data to the updated
task vector, alternating in one process. The plain loop (``parts.text_loop``) is the transformers
model with a hook for each block; the script fails unless its gradients equal the engine's. The
private step clips the gradient of each example and adds seeded noise.

Example:
    python -m simulations.benchmarks.text_steps
    python -m simulations.benchmarks.text_steps --families bart --repeats 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime, runtime_of
from simulations.benchmarks.common import Report, arguments_of, compare, record, script
from simulations.benchmarks.parts.private_steps import (
    batch_of,
    how,
    plain_step,
    private_step,
    seeded,
    start_of,
)
from simulations.benchmarks.parts.text_loop import TextLoop, random_backbone, random_pairs
from simulations.benchmarks.privacy import in_turns

TARGETS = {"engine / plain loop": 1.05, "DP step / step without privacy": 1.10}
STEPS = 4  # of one side per turn
SAME = 1e-4  # largest relative difference of the plain loop's gradients from the engine's


def runtime(family: str, options: argparse.Namespace, folder: Path) -> Runtime:
    """Return the loaded runtime of one client with a random backbone and random texts."""
    backbone = random_backbone(family, options.small, folder / "model")
    words = 190 if options.small else 49_000
    pairs = random_pairs(folder / "pairs.jsonl", STEPS * options.batch + 8, words)
    return runtime_of(
        Experiment.load(
            "",
            [
                f"backbone={backbone}",
                *("task.name=custom", "task.kind=text", f"task.train={pairs}"),
                *("task.source=source", "task.target=target", "task.held_out=8e-3"),
                *("task.prompt={source} w0", "task.max_length=64", "task.max_target=24"),
                *("method.name=slash", f"method.d={16 if options.small else 1024}"),
                *("engine.device=cpu", f"engine.threads={options.threads}"),
            ],
        )
    )


def measure(family: str, options: argparse.Namespace, folder: Path) -> Report:
    """Time the steps of a family.

    Raises:
        SystemExit: the plain loop has other gradients.
    """
    made = runtime(family, options, folder)
    order = generator(0, "benchmark").permutation(len(made.train))
    batches = np.array_split(order[: STEPS * options.batch], STEPS)
    loop, engine = TextLoop(made), plain_step(made)
    private = private_step(made, how(made, seeded(made), options.batch, options.batch))
    apart = _apart(made, loop, batches[0])
    seconds = {
        "engine / plain loop": in_turns(engine, loop.step, batches, options.repeats),
        "DP step / step without privacy": in_turns(private, engine, batches, options.repeats),
    }
    table = [
        compare(name, ("s a step", "s of the other"), *both) | {"at most": TARGETS[name]}
        for name, both in seconds.items()
    ]
    settings = {
        "parameters": loop.language.num_parameters(),
        "batch": options.batch,
        "tokens read, mean": round(float(made.train.lengths.mean()), 1),
        "torch threads": options.threads,
        "repeats": options.repeats,
    }
    facts = {
        "ratio": f"of pairs of {STEPS} steps each, wall clock",
        "gradients of the plain loop differ by, relative": apart,
    }
    return Report(settings, table, facts, {name: [*both] for name, both in seconds.items()})


def _apart(made: Runtime, loop: TextLoop, rows: np.ndarray) -> float:
    """Return the relative difference of the gradients; end if it is too large."""
    expected = loop.gradient(rows)
    actual = made.model.gradients(start_of(made), batch_of(made, rows))[0][0]
    apart = float((actual - expected).norm() / expected.norm())
    if not apart <= SAME:
        raise SystemExit(f"the plain loop's gradients are {apart:.2g} apart: not the same")
    return apart


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    families = ("gpt2", "bart")
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--batch", type=int, default=8, help="examples of a step (8)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--small", action="store_true", help="two narrow blocks, for a test")
    options = parser.parse_args(arguments)
    reports = []
    for family in options.families:
        with tempfile.TemporaryDirectory() as folder:
            reports.append(measure(family, options, Path(folder)))
        record("text_steps", family, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
