"""Pairs of runs that differ only in their codecs, from the table of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

WIRE, METHOD, TASK, LABEL = "wire", "method", "task", "label"
EARLIER_FRAMING = 493  # bytes of a message beside its payload in fedpeft's first version
POINTS = 1.0  # a loss of fewer points is accepted
_NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Choice:
    """A comparison of two ways of training over tasks and seeds.

    Attributes:
        pairs: number of them.
        bytes_up: of a message of each.
        points: 100 times the mean difference of the scores.
        bounds: its 95 % interval.
    """

    pairs: int
    bytes_up: tuple[float, float]
    points: float
    bounds: tuple[float, float]


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per finished cell.

    Args:
        table: of a study, see ``simulations.study.table``; all rounds.

    Returns:
        wire, method and task (labels of the axes), seed, score, ``up`` and ``down`` (message bytes
        of a client and round), ``codecs`` (up and down), and ``whole`` (bytes of the message that
        fedpeft's first version sent: float32 and its framing).
    """
    import pandas as pd

    table = table.assign(failed=table["failed"].fillna(0))
    asked = (table["succeeded"] + table["failed"]).groupby(table["cell"]).sum()
    answered = table["succeeded"].groupby(table["cell"]).sum()
    last = table[table["last"] & table["score"].notna()].set_index("cell")
    task = f"axis.{TASK}" if f"axis.{TASK}" in last else "task"
    return pd.DataFrame(
        {
            WIRE: last[f"axis.{WIRE}"].astype(str),
            METHOD: last[f"axis.{METHOD}"].astype(str),
            TASK: last[task].astype(str),
            "seed": last["seed"],
            "score": last["score"],
            "codecs": last[["up_codec", "down_codec"]].apply(tuple, axis=1),
            "up": last["sent_up_message"] / answered,
            "down": last["sent_down_message"] / asked,
            "whole": _NUMBER * last["vector_size"] + EARLIER_FRAMING,
        }
    ).dropna(subset=["score", "up", "down"])


def compared(cells: pd.DataFrame, by_task: bool = False) -> pd.DataFrame:
    """Compare each method's codecs with its float32 runs of the same task and seed.

    Args:
        cells: see ``measured``.
        by_task: one row per task, too; otherwise all tasks are pooled.

    Returns:
        method, wire, ``n`` pairs, mean ``score``, ``points`` (100 times the mean difference) with
        its 95 % interval ``low`` to ``high``, ``verdict``, mean ``up`` and ``down``, and how many
        times smaller they are than the first version's message.
    """
    import pandas as pd

    keys = [METHOD, *([TASK] if by_task else [])]
    whole = cells[[codecs == ("float32", "float32") for codecs in cells["codecs"]]]
    pairs = cells.merge(whole[[METHOD, TASK, "seed", "score"]], on=[METHOD, TASK, "seed"])
    pairs["points"] = 100 * (pairs["score_x"] - pairs["score_y"])
    rows = []
    for names, group in pairs.groupby([*keys, WIRE], sort=False):
        low, high = interval(group["points"].to_numpy())
        rows.append(
            {
                **dict(zip([*keys, WIRE], names, strict=True)),
                "n": len(group),
                "score": group["score_x"].mean(),
                "points": group["points"].mean(),
                "low": low,
                "high": high,
                "verdict": verdict(low, high),
                "up": group["up"].mean(),
                "down": group["down"].mean(),
                "smaller_up": (group["whole"] / group["up"]).mean(),
                "smaller_down": (group["whole"] / group["down"]).mean(),
            }
        )
    return pd.DataFrame(rows)


def chosen_between(
    cells: pd.DataFrame, one: tuple[str, str], other: tuple[str, str]
) -> Choice | None:
    """Compare two (method, wire) over the tasks and seeds that both have; None without any.

    Args:
        cells: see ``measured``.
        one: method and wire.
        other: the same, subtracted.
    """
    keys = [TASK, "seed"]
    sides = [cells[(cells[METHOD] == m) & (cells[WIRE] == w)] for m, w in (one, other)]
    pairs = sides[0].merge(sides[1], on=keys)
    points = 100 * (pairs["score_x"] - pairs["score_y"]).to_numpy()
    if not len(points):
        return None
    bytes_up = (float(pairs["up_x"].mean()), float(pairs["up_y"].mean()))
    return Choice(len(pairs), bytes_up, float(points.mean()), interval(points))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % t interval of the mean of ``values`` [n]; infinite if n = 1."""
    from scipy import stats

    if len(values) < 2:
        return -np.inf, np.inf
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def verdict(low: float, high: float) -> str:
    """Return whether a loss is below ``POINTS``: yes, no, or unclear if the interval has both."""
    if low > -POINTS:
        return "yes"
    return "no" if high < -POINTS else "unclear"


def lowest(pooled: pd.DataFrame) -> dict[str, str]:
    """Return for each method the codecs with the fewest bytes up and down within the loss."""
    within = pooled[pooled["verdict"] == "yes"]
    total = within["up"] + within["down"]
    best = within.loc[total.groupby(within[METHOD], sort=False).idxmin()]
    return dict(zip(best[METHOD], best[WIRE], strict=True))
