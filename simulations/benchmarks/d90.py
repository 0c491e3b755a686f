"""d90: the fewest numbers that reach 90 % of full fine-tuning (Aghajanyan et al. 2021, section 3).

Reads a study file whose cells have the labels ``method`` and ``size``, the sizes of each method in
ascending order, and runs only some of its cells: all of the reference, then for each method a
bisection over its sizes. A size counts if the mean score over the seeds is at least the share of
the reference's. The bisection takes for granted that a larger size never scores less by more than
the spread of the seeds; the table shows every size that was run. With a [search] in the file, each
size that is run is searched first, as by ``fedpeft study run``.

Runs are cells of a study folder (--out): finished ones are not repeated, unfinished ones resume,
and ``fedpeft study run FILE --out FOLDER --resume`` would run the others.

Example: python -m simulations.benchmarks.d90 simulations/studies/d90.toml --methods SLaSh LoRA
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

from fedpeft.errors import UserError
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts.bisection import Bisection, Runs, scores
from simulations.benchmarks.parts.ladder import Ladder, draw, ladders_of
from simulations.study.choices import Choices
from simulations.study.display import StudyDisplay
from simulations.study.execution import Pool
from simulations.study.file import read
from simulations.study.folder import LOG, StudyFolder
from simulations.study.plan import Plan
from simulations.study.pool import run_jobs


def rows_of(
    results: Mapping[str, Mapping[str, Runs]], found: Mapping[str, str | None], target: float
) -> list[Row]:
    """Return a row for each method and size that was run, ordered by size.

    Args:
        results: method -> size -> the runs of its seeds.
        found: method -> the smallest size that reaches the target.
        target: the score to reach.
    """
    ordered = [
        (method, size, runs)
        for method, sizes in results.items()
        for size, runs in sorted(sizes.items(), key=lambda item: _numbers(item[1]))
    ]
    return [
        {
            "method": method,
            "size": size,
            "numbers": _numbers(runs),
            "lr": runs[0][0].experiment.local.lr,
            "score": round(mean(scores(runs)), 4),
            "deviation": round(stdev(scores(runs)), 4) if len(runs) > 1 else None,
            "seeds at target": f"{sum(score >= target for score in scores(runs))} of {len(runs)}",
            "d90": "yes" if found.get(method) == size else "",
        }
        for method, size, runs in ordered
    ]


def _numbers(runs: Runs) -> int:
    """Return the number of trained numbers without the head."""
    result = runs[0][1].result
    return int(result["vector_size"]) - int(result["head_size"])


def report(plan: Plan, bisection: Bisection, options: argparse.Namespace) -> Report:
    """Run the bisections of the chosen methods, and build the table."""
    ladders = ladders_of(plan.first_cells)
    if options.reference not in ladders:
        raise UserError(
            f"--reference '{options.reference}': expected a method of the study: "
            f"{', '.join(ladders)}"
        )
    reference = ladders.pop(options.reference)
    names = options.methods or list(ladders)
    if unknown := [name for name in names if name not in ladders]:
        raise UserError(f"--methods '{unknown[0]}': expected some of {', '.join(ladders)}")
    full = bisection.score(reference, next(iter(reference.sizes)))
    target = options.share * full
    found = {name: bisection.smallest(ladders[name], target) for name in names}
    table = rows_of(bisection.results, found, target)
    experiment = plan.first_cells[0].experiment
    facts = {
        "score of the reference": round(full, 4),
        "target": round(target, 4),
        "d90": ", ".join(_said(name, found[name], ladders[name]) for name in names),
        "not run": ", ".join(name for name in ladders if name not in names) or "-",
    }
    settings = {
        "task": experiment.task.name,
        "backbone": experiment.backbone,
        "share": options.share,
        "seeds": len(next(iter(reference.sizes.values()))),
    }
    raw = {
        f"{method} {size}": scores(one)
        for method, sizes in bisection.results.items()
        for size, one in sizes.items()
    }
    return Report(settings, table, facts, raw)


def _said(name: str, size: str | None, ladder: Ladder) -> str:
    if size is None:
        return f"{name} more than {list(ladder.sizes)[-1]}"
    return f"{name} {'at most ' if size == next(iter(ladder.sizes)) else ''}{size}"


def main(arguments: Sequence[str] | None = None, pool: Pool | None = None) -> Report:
    """Run the benchmark from its command line; ``pool`` runs the cells, by default processes."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("study", type=Path, help="the study file")
    parser.add_argument("--methods", nargs="+", default=[], help="default: all of the study")
    parser.add_argument("--reference", default="full", help="method that the share is of")
    parser.add_argument("--share", type=float, default=0.9, help="share of its score (0.9)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/d90"), help="study folder")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes (1)")
    parser.add_argument("-s", "--set", action="append", default=[], help="key=value for all cells")
    options = parser.parse_args(arguments)
    study, text = read(options.study)
    resume = StudyFolder.is_at(options.out)
    choices = StudyFolder(options.out).choices() if resume else Choices()
    plan = Plan(study, tuple(options.set), choices)
    given = str(options.study), options.set, choices
    folder = StudyFolder.create(options.out, text, resume, *given)
    pool = pool or partial(run_jobs, count=options.jobs, log=folder.path / LOG)
    console = Console(markup=False, highlight=False)
    with folder.locked(), StudyDisplay(folder, console) as display:
        made = report(plan, Bisection(folder, plan, pool, display), options)
    case = options.study.stem
    record("d90", case, made, arguments, options.results)
    draw(made.table, made.facts["target"], options.results / f"d90-{case}.svg")
    return made


if __name__ == "__main__":
    script(main)
