"""The figures of a report, one picture per task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.page.colours import COLOURS, SOFT
from fedpeft.readable import readable_bytes
from simulations.report.panel import Panel, Picture
from simulations.report.style import Style
from simulations.report.summary import (
    GROUP,
    PANEL,
    SENT,
    SERIES,
    axes_of,
    epsilon_axis,
    finals,
    front,
    joined,
    over_seeds,
    with_starts,
)
from simulations.spread import Spread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PAYLOAD = "payload a client sent up, whole run, mean over clients"
_MARKS = 20  # per curve
_BARS = 60  # clients that a bar chart can show
_NAMED, _LETTERS = 8, 8  # clients with names below the axis, and letters of each
_COLUMNS = 4  # of the legend of classes
_BEYOND = 4.0  # runs without privacy are drawn at this multiple of the largest epsilon


def draw_scores(
    folder: Path, frame: pd.DataFrame, styles: Mapping[str, Style], levels: Mapping[str, float]
) -> list[Picture]:
    """Draw final score against payload bytes, with the Pareto front through the best means.

    Args:
        folder: receives the files.
        frame: see ``summary.labelled``.
        styles: series -> style.
        levels: panel -> score to compare with.
    """
    pictures = []
    for panel, name, rows in _panels(over_seeds(finals(frame))):
        drawn = Panel(panel, f"{PAYLOAD} (log)", rows["metric"].iloc[0])
        best = rows[front(rows)].sort_values(SENT)
        drawn.level(levels.get(panel))
        drawn.axes.plot(best[SENT], best["mean"], "--", color=SOFT, linewidth=1.1, zorder=1)
        for row in rows.itertuples():
            style = styles[row.series]
            tip = f"{_tip(row)}\n{readable_bytes(row.client_sent)} {PAYLOAD}"
            drawn.series(style, [row.client_sent], [row.mean], [tip], [row.deviation])
        drawn.bytes_along_x()
        pictures.append(drawn.save(folder, f"score-bytes-{name}"))
    return pictures


def draw_curves(
    folder: Path,
    frame: pd.DataFrame,
    styles: Mapping[str, Style],
    x: str,
    levels: Mapping[str, float],
) -> list[Picture]:
    """Draw the score after each evaluated round.

    Args:
        folder: receives the files.
        frame: see ``summary.labelled``.
        styles: series -> style.
        x: "round", or SENT for the payload bytes sent so far.
        levels: panel -> score to compare with.
    """
    label = "round" if x == "round" else "payload a client sent up so far (log)"
    frame = with_starts(frame)
    pictures = []
    for panel, name, rows in _panels(
        over_seeds(frame if x == "round" else frame[frame[x] > 0], [*GROUP, "round"])
    ):
        drawn = Panel(panel, label, rows["metric"].iloc[0])
        drawn.level(levels.get(panel))
        for series, curve in rows.groupby(SERIES, sort=False):
            tips = [
                f"{_tip(row)}\nround {row.round}, {readable_bytes(row.client_sent)} of payload"
                for row in curve.itertuples()
            ]
            every = max(1, len(curve) // _MARKS)
            values = curve[x].tolist(), curve["mean"].tolist(), tips, curve["deviation"].tolist()
            drawn.series(styles[str(series)], *values, every=every)
        if x == SENT:
            drawn.bytes_along_x()
        else:
            drawn.whole_numbers_along_x()
        pictures.append(drawn.save(folder, f"curve-{'round' if x == 'round' else 'bytes'}-{name}"))
    return pictures


def draw_epsilon(folder: Path, frame: pd.DataFrame, styles: Mapping[str, Style]) -> list[Picture]:
    """Draw final score against target epsilon; return [] if all runs have the same."""
    frame = frame.assign(target=_targets(frame))
    if frame["target"].fillna(-1).nunique() < 2:
        return []
    axis = epsilon_axis(frame)
    most = frame["target"].max()
    rest = [
        name for name in axes_of(frame)
        if name != axis and frame[name].nunique() > 1 and (frame[name] != frame[PANEL]).any()
    ]  # fmt: skip
    frame = frame.assign(
        line=joined(frame, rest) if axis else frame[SERIES],
        at=frame["target"].fillna(_BEYOND * most),
    )
    pictures = []
    for panel, name, rows in _panels(over_seeds(finals(frame), [PANEL, "line", SERIES, "at"])):
        drawn = Panel(panel, "target epsilon (log)", rows["metric"].iloc[0])
        for _, line in rows.groupby("line", sort=False):
            line = line.sort_values("at")
            colour = styles[line[SERIES].iloc[0]].colour
            drawn.axes.plot(line["at"], line["mean"], color=colour, linewidth=1, alpha=0.5)
            for row in line.itertuples():
                tip = f"{_tip(row)}\n{_epsilon(row.at, most)}"
                drawn.series(styles[row.series], [row.at], [row.mean], [tip], [row.deviation])
        drawn.axes.set_xscale("log")
        ticks = sorted(rows["at"].unique())
        drawn.axes.set_xticks(ticks, [f"{at:g}" if at <= most else "none" for at in ticks])
        drawn.axes.minorticks_off()
        pictures.append(drawn.save(folder, f"score-epsilon-{name}"))
    return pictures


def draw_partitions(folder: Path, partitions: Mapping[str, Spread]) -> list[Picture]:
    """Draw how many training examples each client has, stacked by class.

    Args:
        folder: receives the files.
        partitions: title -> partition.
    """
    pictures = []
    for number, (title, spread) in enumerate(partitions.items(), 1):
        many = len(spread.sizes) > _BARS
        x = "client, sorted by size" if many else "client"
        drawn = Panel(title, x, "training examples")
        drawn.axes.grid(axis="x", visible=False)
        heights = np.array(spread.counts if spread.labels else [[n] for n in spread.sizes])
        if many:
            heights = heights[np.argsort(-heights.sum(axis=1), kind="stable")]
        _stack(drawn.axes, heights, spread.labels, many)
        if spread.names and len(spread.names) <= _NAMED:
            drawn.axes.set_xticks(range(len(spread.names)), [*map(_short, spread.names)])
        else:
            drawn.whole_numbers_along_x()
        pictures.append(drawn.save(folder, f"partition-{number}"))
    return pictures


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"


def _stack(axes: Axes, heights: np.ndarray, labels: Sequence[str], many: bool) -> None:
    """Draw stacked heights [clients, classes]: bars, or a filled stairs plot for many clients."""
    below = np.zeros(len(heights))
    for place in range(heights.shape[1]):
        counts = heights[:, place]
        colour = COLOURS[place % len(COLOURS)][0] if labels else SOFT
        name = labels[place] if labels else None
        if many:
            axes.stairs(below + counts, baseline=below, fill=True, color=colour, label=name)
        else:
            axes.bar(range(len(counts)), counts, bottom=below, color=colour, label=name)
        below += counts
    if labels:
        rows = ceil(len(labels) / _COLUMNS)  # above the bars, which would hide the text
        axes.set_ylim(0, float(below.max()) * (1.02 + 0.08 * rows))
        axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=_COLUMNS)


def _tip(row: Any) -> str:
    """Return the series, metric and score of a row of ``over_seeds`` as text."""
    spread = f" ± {row.deviation:.4f} ({row.n} seeds)" if row.n > 1 else ""
    return f"{row.series}\n{row.metric} {row.mean:.4f}{spread}"


def slug(text: str) -> str:
    """Return a text as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "panel"


def _targets(frame: pd.DataFrame) -> pd.Series:
    """Return the target epsilon of each row; for runs with a given noise, the epsilon spent."""
    spent = frame.groupby("cell")["epsilon"].transform("max")
    return frame["target_epsilon"].fillna(spent.where(frame["privacy"] != "none"))


def _panels(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield the label of each panel, its part of the file name, and its rows."""
    taken: list[str] = []
    for panel, group in rows.groupby(PANEL, sort=False):
        name = slug(str(panel))
        taken.append(name)
        again = taken.count(name)
        yield str(panel), f"{name}-{again}" if again > 1 else name, group


def _epsilon(at: float, most: float) -> str:
    return f"target epsilon {at:g}" if at <= most else "without privacy"
