"""The figures of a report: one picture per task, or several small ones with equal axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.page.colours import COLOURS, SOFT
from fedpeft.readable import readable_bytes
from simulations.report.panel import Panel, Picture, share_axes
from simulations.report.style import Style
from simulations.report.summary import (
    CURVE,
    FACET,
    PANEL,
    SENT,
    SERIES,
    axes_of,
    epsilon_axis,
    facets_of,
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

_DRAWN = [PANEL, FACET, CURVE, SERIES]
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
        styles: curve -> style.
        levels: panel -> score to compare with.
    """
    panels = []
    for panel, title, rows in _panels(over_seeds(finals(frame), _DRAWN)):
        drawn = Panel(title, f"{PAYLOAD} (log)", rows["metric"].iloc[0])
        best = rows[front(rows)].sort_values(SENT)
        drawn.level(levels.get(panel))
        drawn.axes.plot(best[SENT], best["mean"], "--", color=SOFT, linewidth=1.1, zorder=1)
        for row in rows.itertuples():
            style = styles[row.curve]
            tip = f"{_tip(row)}\n{readable_bytes(row.client_sent)} {PAYLOAD}"
            drawn.series(style, [row.client_sent], [row.mean], [tip], [row.deviation])
        drawn.bytes_along_x()
        panels.append((panel, title, drawn))
    return _saved(folder, "score-bytes", panels)


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
    panels = []
    for panel, title, rows in _panels(
        over_seeds(frame if x == "round" else frame[frame[x] > 0], [*_DRAWN, "round"])
    ):
        drawn = Panel(title, label, rows["metric"].iloc[0])
        drawn.level(levels.get(panel))
        for name, curve in rows.groupby(CURVE, sort=False):
            tips = [
                f"{_tip(row)}\nround {row.round}, {readable_bytes(row.client_sent)} of payload"
                for row in curve.itertuples()
            ]
            every = max(1, len(curve) // _MARKS)
            values = curve[x].tolist(), curve["mean"].tolist(), tips, curve["deviation"].tolist()
            drawn.series(styles[str(name)], *values, every=every)
        if x == SENT:
            drawn.bytes_along_x()
        else:
            drawn.whole_numbers_along_x()
        panels.append((panel, title, drawn))
    return _saved(folder, f"curve-{'round' if x == 'round' else 'bytes'}", panels)


def draw_epsilon(folder: Path, frame: pd.DataFrame, styles: Mapping[str, Style]) -> list[Picture]:
    """Draw final score against target epsilon; return [] if all runs have the same."""
    frame = frame.assign(target=_targets(frame))
    if frame["target"].fillna(-1).nunique() < 2:
        return []
    axis = epsilon_axis(frame)
    most = frame["target"].max()
    varied = [
        name for name in axes_of(frame)
        if frame[name].nunique() > 1 and (frame[name] != frame[PANEL]).any()
    ]  # fmt: skip
    rest = [name for name in varied if name != axis]
    facets = [name for name in facets_of(frame, varied) if name != axis]
    frame = frame.assign(
        line=joined(frame, rest) if axis else frame[SERIES],
        at=frame["target"].fillna(_BEYOND * most),
        facet=joined(frame, facets) if facets else "",
    )
    panels = []
    for panel, title, rows in _panels(over_seeds(finals(frame), [*_DRAWN, "line", "at"])):
        drawn = Panel(title, "target epsilon (log)", rows["metric"].iloc[0])
        for _, line in rows.groupby("line", sort=False):
            line = line.sort_values("at")
            colour = styles[line[CURVE].iloc[0]].colour
            drawn.axes.plot(line["at"], line["mean"], color=colour, linewidth=1, alpha=0.5)
            for row in line.itertuples():
                tip = f"{_tip(row)}\n{_epsilon(row.at, most)}"
                drawn.series(styles[row.curve], [row.at], [row.mean], [tip], [row.deviation])
        drawn.axes.set_xscale("log")
        ticks = sorted(rows["at"].unique())
        drawn.axes.set_xticks(ticks, [f"{at:g}" if at <= most else "none" for at in ticks])
        drawn.axes.minorticks_off()
        panels.append((panel, title, drawn))
    return _saved(folder, "score-epsilon", panels)


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
    """Yield the label of each panel, the title of each of its pictures, and the picture's rows."""
    for (panel, facet), group in rows.groupby([PANEL, FACET], sort=False):
        yield str(panel), f"{panel} · {facet}" if facet else str(panel), group


def _saved(folder: Path, kind: str, drawn: Sequence[tuple[str, str, Panel]]) -> list[Picture]:
    """Save pictures; those of one panel get equal axes.

    Args:
        folder: receives the files.
        kind: begins the files' names.
        drawn: the label of the panel, the title of the picture, and the picture.
    """
    together: dict[str, list[Panel]] = {}
    for panel, _, picture in drawn:
        together.setdefault(panel, []).append(picture)
    for pictures in together.values():
        share_axes(pictures)
    taken: list[str] = []
    saved = []
    for _, title, picture in drawn:
        name = slug(title)
        taken.append(name)
        again = f"-{taken.count(name)}" if taken.count(name) > 1 else ""
        saved.append(picture.save(folder, f"{kind}-{name}{again}"))
    return saved


def _epsilon(at: float, most: float) -> str:
    return f"target epsilon {at:g}" if at <= most else "without privacy"
