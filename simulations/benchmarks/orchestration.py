"""Overhead of a study over its runs.

``fedpeft study run`` of a few cells on MiniLM, in a fresh process with one worker, against a fresh
process that runs the same cells in a loop (both by ``simulations.simulation.complete``). Both
import everything and load the backbone once; the study also starts its worker, keeps its folder,
shows its progress and writes its table. The script fails unless both end in the same task vectors.

The table also gives the share of the study's time outside the rounds of its cells, which includes
imports, loading the backbone, and reading and tokenizing data.

Example:
    python -m simulations.benchmarks.orchestration
    python -m simulations.benchmarks.orchestration --backbone tiny --rounds 2
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median

from fedpeft.runs.folder import RESULT
from simulations.benchmarks.common import (
    Report,
    alternate,
    arguments_of,
    child,
    compare,
    record,
    script,
    slash_d,
)
from simulations.benchmarks.parts.usage import Usage, usage_of

TARGET = 1.05
_STUDY = "from fedpeft.cli.app import main; main()"
_LOOP = """
import sys
from pathlib import Path
from fedpeft.runtime import forget_runtimes
from simulations.simulation import complete
from simulations.study.file import read
from simulations.study.plan import Plan
file, out = map(Path, sys.argv[1:])
for cell in Plan(read(file)[0]).cells({}):
    complete(cell.experiment, out / cell.name)
    forget_runtimes()
"""


def study_of(options: Namespace) -> str:
    """Return the study: four methods and sizes, two seeds."""
    d = slash_d(options.backbone)
    size = f'"{d}"' if d == "max" else d
    return f"""
[base]
backbone = "{options.backbone}"
task.train_limit = {options.examples}
task.eval_limit = 100
federation.clients = 4
federation.rounds = {options.rounds}
engine.threads = 1
[axes]
seed = [0, 1]
method = [
    {{ label = "SLaSh", method.name = "slash", method.d = {size} }},
    {{ label = "BitFit", method.name = "bitfit" }},
    {{ label = "LoRA", method.name = "lora", method.rank = 1 }},
    {{ label = "prefix", method.name = "prefix" }},
]
"""


def measure(options: Namespace) -> Report:
    """Run both in turns.

    Raises:
        SystemExit: they do not end in the same vectors.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, numbers = Path(scratch), count()
        file = folder / "study.toml"
        file.write_text(study_of(options), encoding="utf-8")

        def run(code: str, *arguments: str) -> tuple[Usage, list[tuple[str, float]]]:
            out = folder / str(next(numbers))
            usage = usage_of(child(code, *arguments, str(out)), {})
            results = [json.loads(p.read_text()) for p in sorted(out.rglob(RESULT))]
            return usage, [(each["digests"]["vector"], each["seconds"]) for each in results]

        study, loop = alternate(
            lambda: run(_STUDY, "study", "run", str(file), "--out"),
            lambda: run(_LOOP, str(file)),
            options.repeats,
        )
    if len({tuple(vector for vector, _ in runs) for _, runs in (*study, *loop)}) != 1:
        raise SystemExit("the study and the bare loop end in other vectors: not the same training")
    names = ("study s", "loop s")
    table = [
        compare(figure, names, *([getattr(u, kind) for u, _ in side] for side in (study, loop)))
        for figure, kind in (("wall s", "wall"), ("CPU s", "cpu"))
    ]
    rounds = [sum(seconds for _, seconds in runs) / usage.wall for usage, runs in study]
    facts = {
        "ratio": "study / bare loop, of each pair",
        "target": f"wall ratio at most {TARGET}",
        "share of the study outside the cells' rounds, start and loading included": round(
            1 - median(rounds), 4
        ),
    }
    raw = {
        name: [{"wall": usage.wall, "cpu": usage.cpu} for usage, _ in side]
        for name, side in (("study", study), ("loop", loop))
    }
    settings = {
        name: getattr(options, name) for name in ("backbone", "examples", "rounds", "repeats")
    }
    return Report({**settings, "cells": len(study[0][1])}, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=400, help="of all clients (400)")
    options = parser.parse_args(arguments)
    result = measure(options)
    record("orchestration", options.backbone, result, arguments, options.results)
    return [result]


if __name__ == "__main__":
    script(main)
