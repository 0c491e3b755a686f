"""Parameters or bits? Scores and message bytes of the codecs of a study, against float32.

Reads the tables of finished or unfinished studies that have the axes ``wire`` and ``method``, such
as ``simulations/studies/bits.toml``. Each codec is compared with float32 both ways on pairs of the
same method, task and seed, whichever of the studies has them.

Example: python -m simulations.benchmarks.bits runs/studies/bits runs/studies/bits-between
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts.codec_pairs import (
    EARLIER_FRAMING,
    LABEL,
    METHOD,
    POINTS,
    WIRE,
    chosen_between,
    compared,
    lowest,
    measured,
)
from simulations.benchmarks.parts.fronts import draw_fronts, fronts_of
from simulations.study.table import read_table

if TYPE_CHECKING:
    import pandas as pd

#: Where a message of few bytes can have more numbers or more bits: (method, wire), and its rival.
RIVALS = (
    (("SLaSh 1024", "1 up, 32 down"), ("SLaSh 256", "4 up, 32 down")),
    (("SLaSh 1024", "0.2 up, 32 down"), ("SLaSh 256", "1 up, 32 down")),
    (("LoRA r=2", "0.2 up, 32 down"), ("SLaSh 256", "4 up, 32 down")),
    (("LoRA r=2", "0.2 up, 32 down"), ("SLaSh 1024", "1 up, 32 down")),
)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("studies", type=Path, nargs="+", metavar="STUDY", help="its folder")
    parser.add_argument("--case", default="", help="name of the case (the first folder's name)")
    options = parser.parse_args(arguments)
    cells = cells_of(options.studies)
    pooled, by_task = compared(cells), compared(cells, by_task=True)
    fronts = fronts_of(cells)
    case = options.case or options.studies[0].name
    options.results.mkdir(parents=True, exist_ok=True)
    draw_fronts(fronts, options.results / f"bits-{case}.svg")
    facts = {
        "points": f"difference of 100 times the score to float32 both ways, same method, task and "
        f"seed; mean and 95% t interval over pairs; within: the interval lies above -{POINTS:g}",
        "bytes": "messages of one client and round with Flower's metadata, mean over the run",
        "smaller": f"float32 payload + {EARLIER_FRAMING} bytes, the first version's message, "
        "over the message",
        "lowest codecs": "; ".join(f"{name}: {codec}" for name, codec in lowest(pooled).items()),
        "front": "; ".join(
            f"{name}: {', '.join(front[LABEL])}" for name, front in fronts.front.items()
        ),
    }
    settings = {"cells": len(cells), "seeds": int(cells["seed"].nunique())}
    report = Report(settings, rows_of(pooled), facts, {"by task": by_task.to_dict("records")})
    record("bits", case, report, arguments, options.results)
    if choices := rivals(cells):
        facts = {"points": "100 times the mean difference, more numbers minus more bits"}
        more = Report(settings, choices, facts, {})
        record("bits", f"{case}: more numbers or more bits", more, arguments, options.results)
    return report


def rivals(cells: pd.DataFrame) -> list[Row]:
    """Return a row for each of the RIVALS that the cells have."""
    rows: list[Row] = []
    for one, other in RIVALS:
        if found := chosen_between(cells, one, other):
            low, high = found.bounds
            rows.append(
                {
                    "more numbers": " · ".join(one),
                    "more bits": " · ".join(other),
                    "pairs": found.pairs,
                    "bytes up": " and ".join(f"{size:.0f}" for size in found.bytes_up),
                    "points": round(found.points, 2),
                    "interval": f"{low:.2f} to {high:.2f}",
                }
            )
    return rows


def cells_of(studies: Sequence[Path]) -> pd.DataFrame:
    """Return the cells of all studies, see ``measured``."""
    import pandas as pd

    return pd.concat([measured(table_of(study)) for study in studies], ignore_index=True)


def table_of(study: Path) -> pd.DataFrame:
    """Return the table of a study of codecs.

    Raises:
        UserError: there is none yet, or it lacks an axis.
    """
    table = read_table(study)
    if missing := {f"axis.{WIRE}", f"axis.{METHOD}"} - set(table):
        names = ", ".join(sorted(missing))
        raise UserError(f"'{study}' has no {names}; expected a study of codecs")
    return table


def rows_of(pooled: pd.DataFrame) -> list[Row]:
    """Return the rows of the benchmark's table."""
    return [
        {
            "method": row.method,
            "codec": row.wire,
            "pairs": row.n,
            "score": round(row.score, 4),
            "points": round(row.points, 2),
            "interval": f"{row.low:.2f} to {row.high:.2f}",
            "within": row.verdict,
            "bytes up": round(row.up),
            "bytes down": round(row.down),
            "smaller up": round(row.smaller_up, 1),
            "smaller down": round(row.smaller_down, 1),
        }
        for row in pooled.itertuples()
    ]


if __name__ == "__main__":
    script(main)
