"""Score and bytes of small heads against the full head, on tasks with many classes.

`intents` is synthetic; `mentions` and `cloze` are made from the questions of QQP, see
`parts/many_classes.py`. Each run is a federation that trains only the head (`method.name=linear`),
for every task, head and seed, at one learning rate. Finished runs are read from `--scratch`, so the
benchmark can be resumed. The texts are written to `--scratch` too; delete it afterwards.

Example:
    python -m simulations.benchmarks.heads --glue ../shared/data/glue --scratch /tmp/heads
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from fedpeft.batches.kept import KeptStates
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts.many_classes import glue_texts, intents, nouns
from simulations.benchmarks.parts.short_runs import kept, result_of

FULL = "full"
#: Name of a head -> its settings.
HEADS = {
    FULL: ("wire.head=float32",),
    **{
        f"full, {codec} up": (f"wire.head={codec}",)
        for codec in ("eden8", "eden4", "eden2", "eden1", "eden0.25")
    },
    "d = 2048": ("wire.head=float32", "head.d=2048", "head.labels=false"),
    "d = 2048 and labels": ("wire.head=float32", "head.d=2048", "head.labels=true"),
    "rank 24": ("wire.head=float32", "head.rank=24", "head.labels=false"),
    "rank 24 and labels": ("wire.head=float32", "head.rank=24", "head.labels=true"),
}
TASKS = ("intents", "mentions", "cloze")
SHARE, POINTS = 0.25, 1.0  # the aim: at most this share of the bytes and this loss of accuracy


def write_task(task: str, classes: int, glue: Path | None, folder: Path) -> None:
    """Write the files of a task, unless they exist."""
    if (folder / "dev.tsv").exists():
        return
    if task == "intents":
        found = intents(folder, seed=0, classes=classes)
    elif glue is None:
        raise SystemExit(f"{task}: expected --glue, the folder of the GLUE files")
    else:
        found = nouns(folder, glue_texts(glue, "QQP"), 0, task == "cloze", classes)
    if found != classes:
        raise SystemExit(f"{task}: {found} classes at most, --classes {classes} asks for others")


def measured(settings: Sequence[str], folder: Path, states: KeptStates) -> Row:
    """Return the figures of one run, from its file or from a new run.

    Args:
        settings: the run's settings.
        folder: folder of the figures.
        states: representations of texts by earlier runs; they are the same for all heads.
    """

    def figures() -> Row:
        runtime_of(Experiment.load("", settings)).model.kept = states
        result = result_of(settings)
        up = result["bytes"]["per_client_round_up"]["payload"]
        return {"score": result["score"], "numbers": result["head_size"], "up": up}

    return kept(settings, folder, figures)


def settings_of(options: argparse.Namespace, task: str, seed: int) -> list[str]:
    """Return the settings that all heads share."""
    folder = task_folder(options, task)
    return [
        f"seed={seed}",
        f"backbone={options.backbone}",
        "task.name=custom",
        f"task.train={folder / 'train.tsv'}",
        f"task.dev={folder / 'dev.tsv'}",
        "method.name=linear",
        f"local.lr={options.lr}",
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"output.eval_every={options.rounds}",
        "engine.threads=1",
        "engine.device=cpu",
        "output.plots=false",
    ]


def task_folder(options: argparse.Namespace, task: str) -> Path:
    """Return the folder of a task's files."""
    folder: Path = options.scratch / f"{task}-{options.classes}"
    return folder


def rows_of(task: str, runs: dict[str, list[Row]]) -> list[Row]:
    """Return one row of the table for each head; the differences pair the seeds."""
    rows, full = [], runs[FULL]
    for head, figures in runs.items():
        pairs = list(zip(figures, full, strict=True))
        lost = [100 * (other["score"] - one["score"]) for one, other in pairs]
        share = figures[0]["up"] / full[0]["up"]
        rows.append(
            {
                "task": task,
                "head": head,
                "numbers": figures[0]["numbers"],
                "bytes up": figures[0]["up"],
                "of full": round(share, 3),
                "accuracy, %": round(100 * mean(run["score"] for run in figures), 1),
                "points lost": round(mean(lost), 1),
                "deviation": round(stdev(lost), 1) if len(lost) > 1 else 0.0,
                "meets the aim": "yes" if share <= SHARE and mean(lost) <= POINTS else "no",
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 3)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; intents needs none")
    parser.add_argument("--clients", type=int, default=4, help="clients (4)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of one epoch (8)")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate (5e-3)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--classes", type=int, default=150, help="of a task (150)")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=tuple(HEADS))
    parser.add_argument("--case", default="", help="added to the name of the case")
    parser.add_argument("--scratch", type=Path, required=True, help="folder of finished runs")
    options = parser.parse_args(arguments)
    for task in options.tasks:
        write_task(task, options.classes, options.glue, task_folder(options, task))
        runs: dict[str, list[Row]] = {head: [] for head in dict.fromkeys((FULL, *options.heads))}
        settings = settings_of(options, task, seed=0)
        states = runtime_of(Experiment.load("", settings)).model.kept
        for seed, head in product(range(options.repeats), runs):
            settings = [*settings_of(options, task, seed), *HEADS[head]]
            runs[head].append(measured(settings, options.scratch / "runs", states))
        names = ("backbone", "classes", "clients", "rounds", "lr", "repeats")
        facts = {
            "bytes up": "of one client and round; all of them are the head's",
            "points lost": "mean and deviation over seeds of the difference to the full head",
            "the aim": f"at most {SHARE:.0%} of the bytes and {POINTS} points lost",
        }
        report = Report(
            {name: getattr(options, name) for name in names}, rows_of(task, runs), facts, runs
        )
        case = f"{task}, {options.rounds} rounds{options.case}"
        record("heads", case, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
