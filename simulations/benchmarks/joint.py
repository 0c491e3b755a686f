"""Time of cells that share passes, against the same cells one after the other.

The cells differ in their seeds only, and train by SGD: Adam makes rounding errors large where
gradients are tiny. Both sides run whole cells by the functions of
``fedpeft study run`` (``simulations.study.cell_process``) in one process that has loaded the
backbone, alternating. The script fails unless both end in the same task vectors up to rounding.

Example:
    python -m simulations.benchmarks.joint
    python -m simulations.benchmarks.joint --cohort 1
    python -m simulations.benchmarks.joint --device cuda --backbone random-base --cells 8
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from safetensors.numpy import load_file

from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.vectorfile import VECTOR
from simulations.benchmarks.common import (
    APART,
    CLOSE,
    Report,
    Timing,
    alternate,
    arguments_of,
    compare,
    difference,
    record,
    script,
    slash_d,
    timed,
)
from simulations.benchmarks.parts.random_roberta import backbone_of
from simulations.study.cell_process import Job, Outcome, run_job, run_together
from simulations.study.joining import group_of


def experiments_of(options: argparse.Namespace) -> list[Experiment]:
    """Return the cells."""
    settings = [
        f"backbone={backbone_of(options.backbone)}",
        f"task.train_limit={options.examples}",
        "task.eval_limit=20",
        f"method.name={options.method}",
        *([f"method.d={slash_d(options.backbone)}"] if options.method == "slash" else []),
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"local.batch_size={options.batch}",
        "local.optimizer=sgd",
        "local.lr=0.1",
        f"engine.cohort={options.cohort}",
        f"engine.device={options.device}",
        f"engine.threads={options.threads}",
        f"output.eval_every={options.rounds}",
        "output.plots=false",
    ]
    return [Experiment.load("", [*settings, f"seed={seed}"]) for seed in range(options.cells)]


def run_cells(
    experiments: Sequence[Experiment], folder: Path, run: Callable[[list[Job]], list[Outcome]]
) -> tuple[Timing, list[Path]]:
    """Run cells in a folder; return the timing and the folder of each.

    Raises:
        SystemExit: a cell failed.
    """
    jobs = [
        Job(f"seed-{e.seed}", e.to_toml(), str(folder / f"seed-{e.seed}"), e.backbone, group_of(e))
        for e in experiments
    ]
    folder.mkdir()
    timing, outcomes = timed(lambda: run(jobs))
    for outcome in outcomes:
        if outcome.reason:
            raise SystemExit(f"{outcome.name} failed: {outcome.reason}")
    return timing, [Path(job.folder) for job in jobs]


def joint(jobs: list[Job]) -> list[Outcome]:
    """Run cells that share passes.

    Raises:
        SystemExit: they shared none.
    """
    outcomes: list[Outcome] = []
    shared = run_together(jobs, len(jobs), outcomes.append)
    if not shared and not any(outcome.reason for outcome in outcomes):
        raise SystemExit("the cells shared no step")
    return outcomes


def separate(jobs: list[Job]) -> list[Outcome]:
    """Run cells one after the other."""
    return [run_job(job) for job in jobs]


def apart(experiment: Experiment, one: Path, other: Path) -> float:
    """Return the difference of two runs' final vectors, relative to the update."""
    actual, expected = (load_file(folder / VECTOR)["vector"] for folder in (one, other))
    start = runtime_of(experiment).parameters.initial(experiment.seed)
    return difference(actual, expected, start)


def measure(options: argparse.Namespace) -> Report:
    """Run both sides in turns.

    Raises:
        SystemExit: they do not end in the same vectors.
    """
    experiments = experiments_of(options)
    with tempfile.TemporaryDirectory() as scratch:
        names = count()

        def side(run: Callable[[list[Job]], list[Outcome]]) -> tuple[Timing, list[Path]]:
            return run_cells(experiments, Path(scratch) / str(next(names)), run)

        first = [side(run)[1] for run in (joint, separate)]  # warms up both
        differences = [apart(*each) for each in zip(experiments, *first, strict=True)]
        sides = alternate(lambda: side(joint)[0], lambda: side(separate)[0], options.repeats)
    if not max(differences) <= CLOSE:
        raise SystemExit(f"final vectors are {max(differences):.2g} apart: not the same training")
    table = [
        compare(
            figure, ("joint", "separate"), *([getattr(t, kind) for t in each] for each in sides)
        )
        for figure, kind in (("wall s", "wall"), ("CPU s", "cpu"))
    ]
    facts = {"ratio": "joint / separate, of each pair", APART: max(differences)}
    raw = {
        name: [{"wall": timing.wall, "cpu": timing.cpu} for timing in each]
        for name, each in zip(("joint", "separate"), sides, strict=True)
    }
    ignored = ("results", "cohort")
    settings = {name: value for name, value in vars(options).items() if name not in ignored}
    return Report({**settings, "cohort": options.cohort or "automatic"}, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny, random-base")
    parser.add_argument("--method", default="slash", help="a grouped method (slash)")
    parser.add_argument("--cells", type=int, default=4, help="cells that share passes (4)")
    parser.add_argument("--cohort", type=int, default=0, help="clients of a batch; 0 = automatic")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument("--clients", type=int, default=8, help="clients (8)")
    parser.add_argument("--examples", type=int, default=256, help="of all clients (256)")
    parser.add_argument("--batch", type=int, default=32, help="examples of a step (32)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds (1)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    options = parser.parse_args(arguments)
    if options.cells < 2 or options.repeats < 1:
        parser.error("expected --cells of at least 2 and --repeats of at least 1")
    report = measure(options)
    cohort = options.cohort or "automatic"
    case = f"{options.backbone}, {options.device}, cohort {cohort}, batch {options.batch}"
    record("joint", case, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
