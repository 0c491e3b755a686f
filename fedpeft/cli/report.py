"""``fedpeft report``: write the report of a study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="Study folder.")],
) -> None:
    """Write a study's report: one HTML page that needs no network, with PNG and SVG figures.

    It contains the cells finished so far, so it also works while the study runs. Prints the
    number of finished cells and the path of the page.

    Example: fedpeft report runs/studies/noniid-small
    """
    from simulations.report.page import FIGURES, write_report

    page, content = write_report(folder)
    for line in content.damaged:
        print(f"damaged, omitted: {line}; `fedpeft study run` runs it again", file=sys.stderr)
    print(f"{len(content.finished)} of {content.size} cells finished")
    print(f"report: {page}, figures: {folder / FIGURES}")
