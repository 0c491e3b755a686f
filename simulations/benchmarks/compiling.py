"""torch.compile of a backbone's blocks against the plain blocks, and how long compiling takes.

Each work of ``roofline`` on two copies of the model, in turns; one copy's blocks are compiled for
any number of tokens. Seconds of works are those of ``roofline``; seconds of compiling are what the
first call takes longer by the wall clock, with empty caches.

Example:
    python -m simulations.benchmarks.compiling --glue ../shared/data/glue
    python -m simulations.benchmarks.compiling --device cuda --backbone random-large --batch 64
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from statistics import median

import torch

from fedpeft.backbones.loading import cached_backbone
from fedpeft.runtime import forget_runtimes
from simulations.benchmarks.common import Report, Row, alternate, compare, record, script, timed
from simulations.benchmarks.parts.step_parts import seconds
from simulations.benchmarks.roofline import Case, cases_of, options_of


def compiled(method: str, precision: str, options: argparse.Namespace) -> list[Case]:
    """Return the works on a model of their own, whose blocks are compiled at their first call."""
    _forget()  # before and after: no other model shares these blocks
    cases = cases_of(method, precision, options)
    _forget()
    blocks = cases[0].runtime.model.blocks
    # All blocks have one function: its limit of versions counts those of all blocks and works.
    torch._dynamo.config.recompile_limit = 8 * len(blocks)
    for block in blocks:
        block.compile(dynamic=True)
    return cases


def _forget() -> None:
    forget_runtimes()
    cached_backbone.cache_clear()


def measure(method: str, precision: str, options: argparse.Namespace) -> Report:
    """Measure all works of a method in one precision."""
    plain, changed = cases_of(method, precision, options), compiled(method, precision, options)
    device = plain[0].runtime.backbone.device
    table: list[Row] = []
    raw = {}
    for one, other in zip(changed, plain, strict=True):
        other.call()
        first, again = (timed(one.call)[0].wall for _ in range(2))
        sides = alternate(
            partial(seconds, one.call, device),
            partial(seconds, other.call, device),
            options.repeats,
        )
        row = compare(one.work, ("s compiled", "s plain"), *sides)
        saved = median(b - a for a, b in zip(*sides, strict=True))
        calls = round((first - again) / saved) if saved > 0 else "never"
        compiling = round(max(0.0, first - again), 1)
        table.append(row | {"s compiling": compiling, "calls until it pays": calls})
        raw[one.work] = {"compiled": sides[0], "plain": sides[1], "first": first, "again": again}
    settings = {
        "method": method,
        "examples a call": len(plain[0].runtime.train.lengths),
        "batch": options.batch,
        "device": str(device),
        "torch threads": options.threads,
        "repeats": options.repeats,
    }
    return Report(settings, table, {"ratio": "compiled / plain, of each pair of calls"}, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = options_of(__doc__, arguments)
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch  # of compiled code, usually kept
        for method in options.method:
            for precision in options.precision:
                reports.append(measure(method, precision, options))
                case = f"{method}, {options.backbone}, {options.device}, {precision}"
                record("compiling", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
