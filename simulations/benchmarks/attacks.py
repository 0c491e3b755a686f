"""Worst accuracy of the server's rules over attacks, and the success of backdoors.

25 clients on a ``tiny`` backbone, 10 to 40 % of them malicious, for several partitions of the data;
see ``parts/attack_grid.py``. Finished runs are read from ``--scratch``, so the benchmark can be
resumed. The whole grid has 2,400 runs of about three seconds; ``--jobs 2`` runs two at a time.

Example:
    python -m simulations.benchmarks.attacks --scratch /tmp/attacks --jobs 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simulations.benchmarks.common import Report, arguments_of, record, script
from simulations.benchmarks.parts.attack_grid import (
    ATTACKS,
    BACKDOOR,
    CLIENTS,
    HONEST,
    RULES,
    USUAL,
    cells,
    trained_backbone,
)
from simulations.benchmarks.parts.attack_tables import (
    Runs,
    backdoors,
    draw_worst,
    sentences,
    success,
    worst_rows,
)
from simulations.benchmarks.parts.short_runs import measured_all

ATTACKERS = (3, 5, 8, 10)  # of 25: 12, 20, 32 and 40 %


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 3)
    parser.add_argument("--scratch", type=Path, required=True, help="folder of finished runs")
    parser.add_argument("--rounds", type=int, default=12, help="a run (12)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--attackers", nargs="+", type=int, default=list(ATTACKERS))
    options = parser.parse_args(arguments)
    wanted = [
        *cells(options.rules, [HONEST], [USUAL], options.repeats),
        *cells(options.rules, options.attacks, options.attackers, options.repeats),
        *cells(options.rules, [BACKDOOR], [USUAL], options.repeats),
    ]
    wanted.sort(key=lambda cell: cell.seed)
    backbone = trained_backbone(options.scratch.resolve())
    settings = [cell.settings(backbone, options.rounds) for cell in wanted]
    figures = measured_all(settings, options.scratch, options.jobs)
    return recorded(dict(zip(wanted, figures, strict=True)), options, arguments)


def recorded(runs: Runs, options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    """Write tables, sentences and the picture; return the report of the worst accuracies."""
    options.results.mkdir(parents=True, exist_ok=True)
    draw_worst(runs, options.results / "attacks.svg")
    settings = {
        "clients": CLIENTS,
        "seeds": options.repeats,
        "rounds": options.rounds,
        "attacks": ", ".join(options.attacks),
    }
    facts = {
        "cells": "accuracy in %, mean of the seeds, under the attack that lowers it most, and its "
        "name; *: more attackers than the rule tolerates; -: the rule cannot run with so few "
        "clients",
        **{f"sentence {number}": text for number, text in enumerate(sentences(runs), start=1)},
    }
    raw = {cell.key: runs[cell]["score"] for cell in runs if cell.attack != BACKDOOR}
    report = Report(settings, worst_rows(runs), facts, raw)
    record("attacks", "worst accuracy", report, arguments, options.results)
    rows = backdoors(runs)
    facts = {"success": "share of texts of other classes that the trigger turns into the target"}
    raw = {cell.key: success(runs[cell]) for cell in runs if cell.attack == BACKDOOR}
    record("attacks", "backdoor", Report(settings, rows, facts, raw), arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
