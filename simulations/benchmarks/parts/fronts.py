"""The Pareto fronts of score against message bytes: all codecs, and float32 as it was sent once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.benchmarks.parts.codec_pairs import LABEL, METHOD, TASK, WIRE
from simulations.report.panel import settings
from simulations.report.summary import SENT, front

if TYPE_CHECKING:
    import pandas as pd

CODED, EARLIER = "all codecs", "float32, first version"


@dataclass(frozen=True)
class Fronts:
    """Points of score against bytes up of a client and round, by name.

    Attributes:
        points: ``label`` (method and codecs), ``client_sent`` (bytes up of a client and round) and
            ``mean`` (score, mean over tasks and seeds).
        front: those points that no other dominates, by bytes.
    """

    points: dict[str, pd.DataFrame]
    front: dict[str, pd.DataFrame]


def fronts_of(cells: pd.DataFrame) -> Fronts:
    """Return the fronts of the cells, see ``codec_pairs.measured``.

    A series without runs of all tasks and seeds that the others have is left out: its mean would
    be one of other tasks.
    """
    whole = cells[[codecs == ("float32", "float32") for codecs in cells["codecs"]]]
    points = {CODED: _means(cells, "up"), EARLIER: _means(whole, "whole")}
    return Fronts(
        points,
        {name: rows[front(rows)].sort_values(SENT) for name, rows in points.items()},
    )


def _means(cells: pd.DataFrame, sent: str) -> pd.DataFrame:
    count = cells[[TASK, "seed"]].drop_duplicates().shape[0]
    groups = cells.groupby([METHOD, WIRE], sort=False)
    means = groups.agg(**{SENT: (sent, "mean"), "mean": ("score", "mean"), "n": ("score", "size")})
    means = means[means["n"] == count].reset_index()
    return means.assign(**{LABEL: means[METHOD] + " · " + means[WIRE]})


def draw_fronts(fronts: Fronts, path: Path) -> None:
    """Draw both fronts as an SVG file."""
    import matplotlib.pyplot as plt

    with settings():
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        for (name, points), marker, color in zip(
            fronts.points.items(), ("o", "s"), ("#0072b2", "#d55e00"), strict=True
        ):
            line = fronts.front[name]
            axes.plot(points[SENT], points["mean"], marker, color=color, alpha=0.4)
            axes.plot(line[SENT], line["mean"], f"{marker}-", color=color, label=name)
        axes.set_xscale("log")
        axes.set_xlabel("bytes up of a client and round, whole messages")
        axes.set_ylabel("score, mean over tasks and seeds")
        axes.legend()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
