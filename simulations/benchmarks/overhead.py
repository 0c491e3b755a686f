"""Overhead of the local engine over a bare loop that trains the same batches.

The bare loop is plain PyTorch (``parts.bare_loop``) with the same clients, rounds, initial vector,
batches, final evaluation, backbone, process and threads, but without Flower, messages, ledger,
files and group axis. The script fails unless both end in the same vector. Backbone and data are
loaded before; the engine's time covers partition, run folder, handshake, rounds, evaluation and
result.

The comparison disables the engine's cache of hidden states (``engine.cache_mb = 0``). Another row
gives the engine with its cache, empty at the start of each run.

Example:
    python -m simulations.benchmarks.overhead
    python -m simulations.benchmarks.overhead --backbone minilm tiny
    python -m simulations.benchmarks.overhead --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median

import torch
from safetensors.numpy import load_file

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import EngineSection
from fedpeft.runs.folder import VECTOR
from fedpeft.runtime import runtime_of
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
from simulations.benchmarks.parts.bare_loop import BareLoop
from simulations.simulation import prepare, simulate

TARGET = 1.05  # engine / bare loop, wall clock, with minilm
EVALUATED = 64  # dev examples: one batch, so that the evaluation hides no overhead


def run_engine(experiment: Experiment, folder: Path) -> Path:
    """Run the experiment as ``fedpeft simulate`` does, without display and plots."""
    run, _ = prepare(experiment, folder)
    simulate(run, experiment)
    return folder / VECTOR


def experiment_of(backbone: str, options: argparse.Namespace) -> Experiment:
    """Return the experiment that both sides run."""
    task = ["task.name=sst2", f"task.path={options.glue}"] if options.glue else []
    return Experiment.load(
        "",
        [
            f"backbone={backbone}",
            *task,
            f"task.train_limit={options.clients * options.examples}",
            f"task.eval_limit={EVALUATED}",
            f"method.d={slash_d(backbone)}",
            f"federation.clients={options.clients}",
            f"federation.rounds={options.rounds}",
            f"engine.threads={options.threads}",
            "engine.device=cpu",
            "engine.cohort=1",  # one client after the other, as in the bare loop
            "engine.cache_mb=0",
            f"output.eval_every={options.rounds + 1}",  # the last round is always evaluated
            "output.plots=false",
        ],
    )


def with_cache(experiment: Experiment, number: int) -> Experiment:
    """Return the experiment with the default cache; each ``number`` has its cache."""
    cached = Experiment.load(
        experiment.to_toml(),
        [
            f"engine.cache_mb={EngineSection().cache_mb}",
            f"federation.timeout={experiment.federation.timeout + number}",
        ],
    )
    runtime = runtime_of(cached)
    _ = (
        runtime.model,
        runtime.train,
        runtime.dev,
    )  # loaded before the timing, as for the other sides
    return cached


def measure(experiment: Experiment, repeats: int) -> Report:
    """Time both sides alternately, after one warm-up run of each.

    Raises:
        SystemExit: they do not end in the same vector.
    """
    runtime = runtime_of(experiment)
    loop, start = BareLoop(experiment, runtime), runtime.parameters.initial(experiment.seed)
    expected = loop.run()
    with tempfile.TemporaryDirectory() as scratch:
        numbers = count()

        def run(cached: bool) -> tuple[Timing, float]:
            number = next(numbers)
            chosen = with_cache(experiment, number) if cached else experiment
            timing, path = timed(lambda: run_engine(chosen, Path(scratch) / str(number)))
            return timing, difference(load_file(path)["vector"], expected, start)

        run(cached=False), run(cached=True)
        engine, bare = alternate(
            lambda: [run(cached=False), run(cached=True)],
            lambda: [(timed(loop.run)[0], 0.0)],
            repeats,
        )
    apart = max(distance for both in engine for _, distance in both)
    if not apart <= CLOSE:
        raise SystemExit(f"the bare loop ends {apart:.2g} apart from the engine: not the same")
    plain, cached = ([both[side][0] for both in engine] for side in (0, 1))
    return _report(experiment, plain, cached, [runs[0][0] for runs in bare], apart, len(expected))


def _report(
    experiment: Experiment,
    engine: list[Timing],
    cached: list[Timing],
    bare: list[Timing],
    apart: float,
    size: int,
) -> Report:
    names = ("engine", "bare loop")
    table = [
        compare(figure, names, [getattr(a, key) for a in side], [getattr(b, key) for b in bare])
        for figure, side, key in (
            ("wall s", engine, "wall"),
            ("CPU s", engine, "cpu"),
            ("wall s, with the cache", cached, "wall"),
        )
    ]
    federation = experiment.federation
    messages = federation.clients * federation.rounds
    extra = median(a.wall - b.wall for a, b in zip(engine, bare, strict=True))
    facts = {
        "ratio": "engine / bare loop, of each pair of runs",
        "ms of the engine's own for a client and round": 1e3 * extra / messages,
        APART: apart,
        "target for minilm": f"wall ratio at most {TARGET}",
    }
    settings = {
        "backbone": experiment.backbone,
        "task": experiment.task.name,
        "clients": federation.clients,
        "examples a client": experiment.task.train_limit // federation.clients,
        "rounds": federation.rounds,
        "batch": experiment.local.batch_size,
        "vector": size,
        "torch threads": torch.get_num_threads(),
        "repeats": len(engine),
    }
    sides = {"engine": engine, "engine with the cache": cached, "bare loop": bare}
    raw = {name: [vars(run) for run in runs] for name, runs in sides.items()}
    return Report(settings, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", nargs="+", default=["minilm"], help="minilm (default), tiny")
    parser.add_argument(
        "--glue", type=Path, help="folder of GLUE files: use SST-2, not synthetic data"
    )
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--examples", type=int, default=64, help="examples of each client (64)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch decides)")
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    reports = []
    for backbone in options.backbone:
        experiment = experiment_of(backbone, options)
        reports.append(measure(experiment, options.repeats))
        case = f"{backbone}, {experiment.task.name}"
        record("overhead", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
