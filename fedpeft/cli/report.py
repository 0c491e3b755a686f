"""``fedpeft report``: draw what a study found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="Study folder.")],
) -> None:
    """Write a study's report: one HTML page that needs no network, and PNG and SVG figures.

    It holds what is finished so far, so it can also be made while the study runs.

    Example: fedpeft report runs/studies/noniid-small
    """
    from simulations.report.page import FIGURES, write_report

    page, content = write_report(folder)
    for line in content.damaged:
        print(f"damaged, left out: {line}; `fedpeft study run` runs it again", file=sys.stderr)
    print(f"{len(content.found)} of {content.size} cells finished")
    print(f"report: {page}, its figures: {folder / FIGURES}")
