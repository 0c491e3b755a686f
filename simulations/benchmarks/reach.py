"""Rounds and bytes until 95 % and 99 % of full fine-tuning, for each way of training of a study.

Reads the table of a finished or unfinished study such as ``simulations/studies/reach.toml``. The
target is a share of the mean of the reference's last scores over its seeds. A run reaches it in the
first evaluated round that scores as much.

Example: python -m simulations.benchmarks.reach runs/studies/reach
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.report.summary import PANEL, SERIES, finals, labelled, over_seeds, to_target
from simulations.study.table import read_table

if TYPE_CHECKING:
    import pandas as pd

SHARES = 0.95, 0.99


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.add_argument("--reference", default="full", help="series that the shares are of")
    options = parser.parse_args(arguments)
    frame = labelled(read_table(options.study))
    facts = {
        "target": f"a share of the mean last score of '{options.reference}'; rounds and bytes are "
        "means over the seeds that reached it",
        "bytes": "payload up of one client, mean over all clients; messages with Flower's "
        "metadata, up and down, of all clients",
    }
    settings = {"cells": int(frame["cell"].nunique()), "seeds": int(frame["seed"].nunique())}
    report = Report(settings, rows_of(frame, options.reference), facts, {})
    record("reach", options.study.name, report, arguments, options.results)
    return report


def rows_of(frame: pd.DataFrame, reference: str) -> list[Row]:
    """Return a row for each task, share and series.

    Args:
        frame: see ``labelled``.
        reference: name of the series that the shares are of.

    Raises:
        UserError: there is no such series.
    """
    ends = over_seeds(finals(frame))
    full = ends[ends[SERIES] == reference].set_index(PANEL)["mean"]
    if full.empty:
        names = ", ".join(ends[SERIES].unique())
        raise UserError(f"--reference '{reference}': is no series of the study; expected {names}")
    last = ends.set_index([PANEL, SERIES])["mean"]
    has_time = "virtual" in frame and bool(frame["virtual"].notna().any())
    return [
        {
            "task": row.panel,
            "share": share,
            "series": row.series,
            "last score": round(last[row.panel, row.series], 4),
            "reached": f"{row.reached} of {row.seeds}",
            "rounds": round(row.round, 1) if row.reached else None,
            "payload up per client": round(row.client_sent) if row.reached else None,
            "messages up and down": round(row.messages) if row.reached else None,
            **(_minutes(row.virtual) if has_time else {}),
        }
        for share in SHARES
        for row in to_target(frame, (share * full).to_dict()).itertuples()
    ]


def _minutes(seconds: float) -> Row:
    return {"virtual minutes": None if isnan(seconds) else round(seconds / 60, 1)}


if __name__ == "__main__":
    script(main)
