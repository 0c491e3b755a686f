"""Throughput of texts for many task vectors in mixed batches, against one merged model.

The merged model is the backbone with one vector's shifts added to its biases; it takes the same
texts through the same code, without modifications. All sides alternate in one process.

Example:
    python -m simulations.benchmarks.serving --glue ../shared/data/glue
    python -m simulations.benchmarks.serving --glue ../shared/data/glue --device cuda --batch 512
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from deployment.serving.catalog import Catalog, Entry
from deployment.serving.engine import Engine, Item
from fedpeft.backbones.hardware import set_threads
from fedpeft.modifications.fusing import fused
from simulations.benchmarks.common import (
    Report,
    Row,
    Timing,
    arguments_of,
    record,
    script,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.random_roberta import backbone_of
from simulations.benchmarks.parts.served_vectors import entries, filled, texts, vector_files


class Sides:
    """The measured sides; each answers one batch of texts and returns its timing."""

    def __init__(self, catalog: Catalog, batch: int):
        self._catalog = catalog
        self.many, (self.one,) = entries(catalog, "slash"), entries(catalog, "linear")
        self._draw = np.random.default_rng(0)
        self._kept = Engine(catalog.setups, 1 << 30, batch)
        self._computed = Engine(catalog.setups, 0, batch)

    def merged(self, lines: Sequence[str]) -> Timing:
        """One merged model: weights changed, no modifications."""
        first = self.many[0]
        family = first.setup.family
        with torch.inference_mode():
            row = self._kept.rows.of([first])[0][None]
        changes = family.modifications(row[:, : family.size])
        model = self._catalog.setups.backbone.model
        with fused(model, family.method.shape, changes):
            return _timing(self._kept, [self.one] * len(lines), lines)

    def single(self, lines: Sequence[str]) -> Timing:
        """One vector as modifications."""
        return _timing(self._kept, [self.many[0]] * len(lines), lines)

    def mixed(self, lines: Sequence[str]) -> Timing:
        """A random vector for each text, realised vectors kept."""
        chosen = self._random(len(lines))
        with torch.inference_mode():
            self._kept.rows.of(chosen)
        return _timing(self._kept, chosen, lines)

    def mixed_computed(self, lines: Sequence[str]) -> Timing:
        """A random vector for each text, realised in every pass."""
        return _timing(self._computed, self._random(len(lines)), lines)

    def _random(self, count: int) -> list[Entry]:
        return [self.many[i] for i in self._draw.integers(len(self.many), size=count)]


def _timing(engine: Engine, chosen: Sequence[Entry], lines: Sequence[str]) -> Timing:
    items = [Item(entry, line) for entry, line in zip(chosen, lines, strict=True)]
    return timed(lambda: engine.answer(items))[0]


def measured(
    sides: Sides, lines: Sequence[str], batch: int, repeats: int
) -> tuple[list[Row], dict[str, list[float]]]:
    """Return the table, and seconds of each side and repeat.

    The sides alternate within each batch, so that the machine's load affects all of them.
    """
    calls: dict[str, Callable[[Sequence[str]], Timing]] = {
        "merged": sides.merged,
        "one vector": sides.single,
        "mixed, kept": sides.mixed,
        "mixed, computed": sides.mixed_computed,
    }
    raw: dict[str, list[float]] = {f"{name}, {of}": [] for of in ("wall", "CPU") for name in calls}
    for repeat in range(repeats + 1):
        totals = dict.fromkeys(raw, 0.0)
        for turn, start in enumerate(range(0, len(lines), batch)):
            names = [*calls]
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                timing = calls[name](lines[start : start + batch])
                totals[f"{name}, wall"] += timing.wall
                totals[f"{name}, CPU"] += timing.cpu
        if repeat:  # the first repeat warms up
            for name, seconds in totals.items():
                raw[name].append(round(seconds, 4))
    return [_row(name, raw, len(lines)) for name in calls], raw


def _row(name: str, raw: Mapping[str, Sequence[float]], count: int) -> Row:
    """Return speeds of a side, and their ratios to those of the merged model."""
    row: Row = {"side": name, "texts/s": round(count / median(raw[f"{name}, wall"]), 1)}
    for of in ("CPU", "wall"):
        pairs = zip(raw[f"merged, {of}"], raw[f"{name}, {of}"], strict=True)
        ratios = [merged / side for merged, side in pairs]
        row |= {
            f"of merged ({of} time)": round(median(ratios), 3),
            f"least ({of})": round(min(ratios), 3),
            f"largest ({of})": round(max(ratios), 3),
        }
    return row


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _options(arguments)
    set_threads(options.threads)
    common = [
        f"backbone={backbone_of(options.backbone)}",
        "task.name=sst2",
        f"engine.device={options.device}",
    ]
    before = resident("VmRSS")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "first.safetensors"
        linear = vector_files([*common, "method.name=linear"], 1)
        catalog = filled(None, "linear", linear, file)
        loaded, start = resident("VmRSS"), time.perf_counter()
        files = vector_files(
            [*common, "method.name=slash", f"method.d={options.d}"], options.vectors
        )
        filled(catalog, "slash", files, file)
        seconds = time.perf_counter() - start
    lines = texts(options.task, str(options.glue or ""), options.texts)
    sides = Sides(catalog, options.batch)
    table, raw = measured(sides, lines, options.batch, options.repeats)
    facts = {
        "seconds to make and add the vectors": round(seconds, 1),
        "MB of the process with the backbone": round(loaded),
        "MB of the process at the end": round(resident("VmRSS")),
        "MB of the process before": round(before),
    }
    names = ("backbone", "device", "task", "d", "vectors", "texts", "batch", "threads")
    settings = {name: getattr(options, name) for name in names}
    report = Report({**settings, "torch_threads": torch.get_num_threads()}, table, facts, dict(raw))
    case = options.backbone if options.device == "cpu" else f"{options.backbone}, {options.device}"
    record("serving", case, report, arguments, options.results)
    return report


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = arguments_of(__doc__, 9)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny, random-base")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument("--task", default="sst2", help="task of the texts (sst2)")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: download")
    parser.add_argument("--d", default="1024", help="SLaSh's d (1024)")
    parser.add_argument("--vectors", type=int, default=10_000, help="task vectors (10000)")
    parser.add_argument("--texts", type=int, default=640, help="texts of a measurement (640)")
    parser.add_argument("--batch", type=int, default=64, help="texts of a batch (64)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 = all cores (0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    script(main)
