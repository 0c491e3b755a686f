"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

ExperimentFile = Annotated[
    Path | None, typer.Argument(help="Experiment file (TOML); if omitted, the default settings.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Set one key, e.g. -s local.lr=3e-3."),
]
FromRound = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --resume: continue after round N, one of the last two, and drop later rounds.",
    ),
]
FinishedRun = Annotated[
    Path, typer.Argument(help="Run folder of a finished run, or a vector file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Print the log as JSON.")]
OnServer = Annotated[
    str, typer.Option("--on", help="Server: its state folder, connection file, or name.")
]
NewRun = Annotated[
    Path | None, typer.Option("--out", help="Run folder; default: runs/TASK-METHOD-TIME.")
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
ServerState = Annotated[Path, typer.Option("--state", help="The server's state folder.")]


def read_experiment(
    file: Path | None,
    overrides: Sequence[str] | None,
    say: Callable[[str], object] | None = None,
    folder: Path | None = None,
    elsewhere: bool = False,
) -> Experiment:
    """Return the experiment of a file and overrides, with all choices made that they leave open.

    Args:
        file: experiment file (TOML); None for the defaults.
        overrides: ``KEY=VALUE`` each.
        say: prints what the budget chose, or that choices were left.
        folder: of the run; if there is one, its choices are kept.
        elsewhere: whether backbone and data may be on another machine; choices that depend on them
            are then left at their first values, unless they are here.

    Raises:
        UserError: see ``Experiment.read`` and ``planned``.
    """
    from fedpeft.planning import can_plan, choices_kept, planned
    from fedpeft.updates.budget import chosen, message_bytes

    experiment = Experiment.read(file, overrides or ())
    kept = choices_kept(file, folder)
    if kept is None and elsewhere and not can_plan(experiment):
        kept = experiment.left_open()
        if say and "head.start" in kept:
            say(
                f"head.start = 'random': the backbone '{experiment.backbone}' or the labels of the "
                f"task are not on this machine, so no start was chosen"
            )
    decided = planned(experiment, kept)
    if say and experiment.wire.budget:
        say(
            f"wire.budget = '{experiment.wire.budget}' chose {chosen(decided)}: at most "
            f"{message_bytes(decided):,} bytes up per client and round"
        )
    return decided


def check_from_round(from_round: int | None, resume: bool) -> None:
    """Raise UserError if ``--from-round`` is given without ``--resume``."""
    if from_round is not None and not resume:
        raise UserError(f"--from-round {from_round} needs --resume")
