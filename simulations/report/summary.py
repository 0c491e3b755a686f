"""Statistics of a study: pure functions of its table (``simulations.study.table``).

``labelled`` adds the columns that the other functions group by: ``panel``, the task; ``series``,
the labels on all other axes except the seed, such as "SLaSh 256"; ``facet`` and ``curve``, the two
parts of it where the series of a task are many: each facet has a picture, and a curve looks alike
in all; ``hue``, the part of the curve that sets the color; and ``client_sent``, the payload bytes
that a client sent up so far, those of the start included, mean over all clients of the federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from simulations.study.file import SEED

if TYPE_CHECKING:
    import pandas as pd

    from simulations.frozen import Line

PANEL, SERIES, HUE, SENT = "panel", "series", "hue", "client_sent"
FACET, CURVE = "facet", "curve"
GROUP = [PANEL, SERIES]
TOGETHER = 4  # series of several axes that one picture can show
REACH = 0.95  # default target: this fraction of the way from the worst series to the best
_AXIS = "axis."
_METHOD = (f"{_AXIS}method", f"{_AXIS}method.name")
_NUMBERS = (
    "score",
    "target_epsilon",
    "epsilon",
    "alpha",
)  # pandas would read empty columns as objects


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """Return a study's table with the columns described in the module."""
    frame = table.astype(dict.fromkeys(_NUMBERS, "float64"))
    named = [name for name in (f"{_AXIS}task", f"{_AXIS}task.name") if name in frame]
    task = named[0] if named else "task"
    frame[PANEL] = frame[task].astype(str)
    axes = [name for name in axes_of(frame) if name != task and frame[name].nunique() > 1]
    frame[SERIES] = joined(frame, axes)
    method = [name for name in axes if name in _METHOD]
    facets = facets_of(frame, axes)
    curves = [name for name in axes if name not in facets]
    frame[FACET] = joined(frame, facets) if facets else ""
    frame[CURVE] = joined(frame, curves)
    frame[HUE] = joined(frame, method or curves)
    start = frame.get("start_up_payload", 0)  # tables of an old version have none
    frame[SENT] = (frame["sent_up_payload"] + start) / frame["clients"]
    return frame


def facets_of(frame: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Return the axes that divide the series of a task over several pictures; [] if one is enough.

    All axes are but one, whose labels are the curves: the method, otherwise that with the most
    labels. A target epsilon is along x in a figure of its own, so it is no curve.

    Args:
        frame: with ``panel`` and ``series``.
        axes: those whose labels differ, except the task.
    """
    if len(axes) < 2 or frame.groupby(PANEL)[SERIES].nunique().max() <= TOGETHER:
        return []
    candidates = [name for name in axes if name != epsilon_axis(frame)]
    method = [name for name in candidates if name in _METHOD]
    curves = max(method or candidates, key=lambda name: frame[name].nunique())
    facets = [name for name in axes if name != curves]
    together = frame.groupby([PANEL, *facets])[curves].nunique().max() > 1
    return facets if together else []  # one curve in each picture would compare nothing


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Return the columns of all axes except the seed."""
    return [name for name in frame if name.startswith(_AXIS) and name != f"{_AXIS}{SEED}"]


def joined(frame: pd.DataFrame, axes: Sequence[str]) -> pd.Series:
    """Return the joined labels of axes for each row; the method's name without axes."""
    if not axes:
        return frame["method"]
    return frame[list(axes)].agg(" · ".join, axis=1)


def with_starts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows and, for each cell whose start was scored, one of round 0 before them."""
    import pandas as pd

    if "start_score" not in frame:  # a table of an old version
        return frame
    first = frame[frame["start_score"].notna()].drop_duplicates("cell")
    sent = first["start_up_payload"] / first["clients"]
    starts = first.assign(round=0, score=first["start_score"], **{SENT: sent})
    return pd.concat([starts, frame], ignore_index=True)


def finals(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: its last evaluated round."""
    scored = frame[frame["score"].notna()]
    return scored.loc[scored.groupby("cell", sort=False)["round"].idxmax()]


def over_seeds(frame: pd.DataFrame, by: Sequence[str] = GROUP) -> pd.DataFrame:
    """Return ``mean``, ``deviation`` (n - 1; NaN if n = 1) and ``n`` of the score per group.

    Args:
        frame: one row per cell, see ``finals``; or per cell and round, with ``round`` in ``by``.
        by: columns of a group; its rows differ in the seed.

    Returns:
        One row per group, in order of appearance; ``client_sent`` is the group's mean.
    """
    return (
        frame[frame["score"].notna()]
        .groupby(list(by), sort=False)
        .agg(
            mean=("score", "mean"),
            deviation=("score", "std"),
            n=("score", "size"),
            client_sent=(SENT, "mean"),
            metric=("metric", "first"),
        )
        .reset_index()
    )


def frozen_scores(lines: Mapping[str, Sequence[Line]]) -> pd.DataFrame:
    """Return the lines of cells as a table: ``cell``, ``name`` of the line, and ``score``."""
    import pandas as pd

    each = [{"cell": cell, **line} for cell, found in lines.items() for line in found]
    return pd.DataFrame(each, columns=["cell", "name", "score"])


def frozen_means(frame: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return what frozen backbones score with all data in one place.

    Args:
        frame: see ``labelled``.
        scores: see ``frozen_scores``.

    Returns:
        One row per panel, backbone and ``name`` of a line: ``score``, the mean over cells, whose
        seeds may choose other examples.
    """
    cells = frame.drop_duplicates("cell")[["cell", PANEL, "backbone", "metric"]]
    rows = cells.merge(scores, on="cell")
    by = [PANEL, "backbone", "name", "metric"]
    return rows.groupby(by, sort=False)["score"].mean().reset_index()


def front(points: pd.DataFrame) -> pd.Series:
    """Return the mask of the Pareto front: points that no other point dominates.

    Args:
        points: with ``client_sent`` (less is better) and ``mean`` (more is better).
    """
    import pandas as pd

    sent, score = points[SENT].to_numpy(), points["mean"].to_numpy()
    cheaper = (sent[:, None] <= sent) & (score[:, None] >= score)  # [other, point]
    better = (sent[:, None] < sent) | (score[:, None] > score)
    return pd.Series(~(cheaper & better).any(axis=0), index=points.index)


def targets_of(points: pd.DataFrame, given: Mapping[str, float]) -> dict[str, float]:
    """Return panel -> target score: given, or REACH of the way from the worst to the best.

    Args:
        points: final means, see ``over_seeds``, with the column ``task``.
        given: panel's label or task's name -> target score.
    """
    targets = {}
    for panel, rows in points.groupby(PANEL, sort=False):
        names = [name for name in (panel, *rows["task"]) if name in given]
        worst, best = rows["mean"].min(), rows["mean"].max()
        targets[panel] = given[names[0]] if names else float(worst + REACH * (best - worst))
    return targets


def to_target(frame: pd.DataFrame, targets: Mapping[str, float]) -> pd.DataFrame:
    """Return the rounds and bytes that each series needed to reach its panel's target first.

    Returns:
        One row per group: ``target``, ``seeds``, ``reached`` (seeds that reached it), and their
        means of ``round``, ``client_sent``, ``messages`` (bytes up and down, all clients) and
        ``virtual`` (seconds of virtual time).
    """
    frame = frame.assign(
        target=frame[PANEL].map(targets),
        messages=frame["sent_up_message"] + frame["sent_down_message"],
        virtual=frame["virtual"] if "virtual" in frame else float("nan"),  # tables of old versions
    )
    there = frame[frame["score"] >= frame["target"]]
    first = there.loc[there.groupby("cell", sort=False)["round"].idxmin()]
    result = frame.groupby(GROUP, sort=False).agg(
        target=("target", "first"), seeds=("cell", "nunique")
    )
    groups = first.groupby(GROUP, sort=False)
    means = groups[["round", SENT, "messages", "virtual"]].mean()
    result = result.join(groups.size().rename("reached")).join(means).reset_index()
    return result.assign(reached=result["reached"].fillna(0).astype(int))


def at_budgets(frame: pd.DataFrame, budgets: Sequence[float]) -> pd.DataFrame:
    """Return each series' score at the last evaluated round within each budget.

    Args:
        frame: see ``labelled``.
        budgets: payload bytes that a client may send up.

    Returns:
        The columns of ``over_seeds`` and ``budget``; only rows with a score.
    """
    import pandas as pd

    parts = [
        over_seeds(finals(frame[frame[SENT] <= budget])).assign(budget=budget) for budget in budgets
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def round_budgets(frame: pd.DataFrame, count: int = 3) -> list[float]:
    """Return budgets (1, 2 or 5 times a power of ten) spread over the bytes sent, log scale."""
    low, high = log10(frame[SENT].clip(lower=1).min()), log10(frame[SENT].clip(lower=1).max())
    steps = [low + (high - low) * (at + 1) / (count + 1) for at in range(count)]
    return sorted({_round(10**step) for step in steps})


def _round(value: float) -> float:
    power = 10.0 ** floor(log10(value))
    return power * min((1, 2, 5, 10), key=lambda digit: abs(log10(value / power / digit)))


def epsilon_axis(frame: pd.DataFrame) -> str | None:
    """Return the axis that sets the target epsilon, None if no single axis does."""
    epsilon = frame["target_epsilon"].fillna(-1)
    if epsilon.nunique() < 2:
        return None
    for axis in axes_of(frame):
        if frame[axis].nunique() > 1 and epsilon.groupby(frame[axis]).nunique().max() == 1:
            return str(axis)
    return None
