"""Clipping at the median of a round (`federation.max_update_norm=auto`): what it clips and saves.

Federations of ten clients without an attacker, with clipping and without, and with one attacker
that sends -2, -10 or -50 times its update, for several partitions of the same examples; the same
seeds for all. Finished runs are read from `--scratch`, so the benchmark can be resumed.

Example:
    python -m simulations.benchmarks.clipping --scratch /tmp/clipping
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts import attack_grid
from simulations.benchmarks.parts.short_runs import measured_all

CLIENTS = 10
PARTITIONS = {
    **attack_grid.PARTITIONS,
    # Whole epochs, so that clients with more examples take more steps.
    "quantity 0.5": (
        *("partition.kind=quantity", "partition.alpha=0.5"),
        *("task.train_limit=1000", "local.steps=0", "local.epochs=1"),
    ),
}
ATTACK = (f"adversary.fraction={1 / CLIENTS}", "adversary.attack=scaling")
#: Clipping, then the factor of the attacker; None = all clients are honest.
CASES = {
    "no limit": ("0", None),
    "clipped": ("auto", None),
    "no limit, attacker -10x": ("0", -10),
    "clipped, attacker -10x": ("auto", -10),
    "clipped, attacker -50x": ("auto", -50),
    "clipped, attacker -2x": ("auto", -2),  # about as long as the limit
}
HONEST, POINTS = 0.05, 2.0  # the aims: honest updates clipped, points lost to an attacker


def row_of(partition: str, case: str, runs: list[Row], reference: list[Row], rounds: int) -> Row:
    """Return a row of the table; differences pair the seeds of the run without any limit."""
    lost = [
        100 * (one["score"] - other["score"]) for one, other in zip(reference, runs, strict=True)
    ]
    share = mean(run["clipped"] for run in runs) / (CLIENTS * rounds)
    return {
        "partition": partition,
        "case": case,
        "accuracy, %": round(100 * mean(run["score"] for run in runs), 1),
        "points lost": round(mean(lost), 1),
        "deviation": round(stdev(lost), 1) if len(lost) > 1 else 0.0,
        "updates clipped, %": round(100 * share, 1),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 10)
    parser.add_argument("--rounds", type=int, default=12, help="a run (12)")
    parser.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    parser.add_argument("--scratch", type=Path, required=True, help="folder of finished runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    options = parser.parse_args(arguments)
    return _recorded(options, arguments)


def _recorded(options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    backbone = attack_grid.trained_backbone(options.scratch.resolve())
    settings = [
        attack_grid.federation(CLIENTS, more, backbone, options.rounds, seed)
        for _, _, more in cases(options.partitions)
        for seed in range(options.repeats)
    ]
    figures = iter(measured_all(settings, options.scratch, options.jobs))
    rows, runs = [], {}
    for partition, case, _ in cases(options.partitions):
        name, reference = f"{partition}, {case}", f"{partition}, {next(iter(CASES))}"
        runs[name] = [next(figures) for _ in range(options.repeats)]
        rows.append(row_of(partition, case, runs[name], runs[reference], options.rounds))
    facts = {
        "points lost": "mean and deviation over seeds of the difference to the run with no limit",
        "the aims": f"at most {HONEST:.0%} of honest updates clipped, and at most {POINTS} points "
        f"lost to one attacker of {CLIENTS}",
    }
    used = {"clients": CLIENTS, "rounds": options.rounds, "seeds": options.repeats}
    report = Report(used, rows, facts, runs)
    record("clipping", "one of ten", report, arguments, options.results)
    return report


def cases(partitions: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield partition, case, and the settings of its federations, those with no limit first."""
    for partition in partitions:
        for case, (limit, factor) in CASES.items():
            attack = () if factor is None else (*ATTACK, f"adversary.strength={factor}")
            limits = (*attack, f"federation.max_update_norm={limit}")
            yield partition, case, [*PARTITIONS[partition], *limits]


if __name__ == "__main__":
    script(main)
