"""``fedpeft report``: write the report of a study, of a run, or of several runs compared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpeft.errors import UserError


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="A study folder, a run folder, or several runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File of a report of runs; default for one run: RUN/report.html."),
    ] = None,
    frozen: Annotated[
        bool | None,
        typer.Option(
            help="Measure what the frozen backbone scores with all data in one place; default for "
            "at most 50,000 training examples.",
        ),
    ] = None,
) -> None:
    """Write a report: one HTML page that needs no network.

    Of a study, it compares the cells finished so far, with PNG and SVG figures beside it. Of a run,
    it shows figures, settings, privacy, and how to repeat and use the run; of several runs, it
    compares them. Simulations without privacy have a line with the score of the frozen backbone
    and a regression on all data in one place. Prints the path of the page.

    Example: fedpeft report runs/studies/noniid-small
    """
    from simulations.study.folder import StudyFolder

    studies = [folder for folder in folders if StudyFolder.is_at(folder)]
    if not studies:
        _report_runs(folders, out, frozen)
    elif len(folders) > 1:
        raise UserError(f"'{studies[0]}' is a study: it has a report of its own; name only runs")
    elif out:
        raise UserError(f"--out {out}: the report of a study is in its folder; leave it out")
    else:
        _report_study(studies[0], frozen)


def _report_study(folder: Path, frozen: bool | None) -> None:
    from simulations.report.content import runs_of
    from simulations.report.page import FIGURES, write_report

    _measure(runs_of(folder), frozen)
    page, content = write_report(folder)
    for line in content.damaged:
        print(f"damaged, omitted: {line}; `fedpeft study run` runs it again", file=sys.stderr)
    print(f"{len(content.finished)} of {content.size} cells finished")
    print(f"report: {page}, figures: {folder / FIGURES}")


def _report_runs(folders: list[Path], out: Path | None, frozen: bool | None) -> None:
    from simulations.report.runs import page_of, write_runs_report

    page_of(folders, out)  # refuses before what takes long
    _measure(folders, frozen)
    page, left_out = write_runs_report(folders, out)
    for line in left_out:
        print(line, file=sys.stderr)
    print(f"report: {page}")


def _measure(runs: Sequence[Path], frozen: bool | None) -> None:
    """Measure the frozen backbone of the runs that do not hold its score."""
    from simulations.report.frozen_scores import MOST, measure

    if frozen is not False:
        most = sys.maxsize if frozen else MOST
        measure(runs, most, lambda line: print(line, file=sys.stderr))
