"""Which differences between series stand out from the chance of the seeds.

Two series are compared on the pairs that differ in nothing else: the same task and seed. Up to
five pairs the paired t-test says how probable such a difference is by chance; from six on
Wilcoxon's signed-rank test, which asks nothing of the differences' shape. Where all pairs of
series are compared, p is corrected after Holm (1979): the chance that any of the differences
called significant is none stays below the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from simulations.report.summary import PANEL, SERIES

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
POOLED = "all tasks"
_WILCOXON_FROM = 6  # pairs; with fewer its least p is above 0.05


@dataclass(frozen=True)
class Comparison:
    """Two series on their common pairs; ``p`` is two-sided, None where it cannot be known."""

    panel: str
    one: str
    other: str
    n: int
    difference: float  # mean of one minus other
    test: str
    p: float | None
    holm: float | None = None  # p, corrected for all comparisons of the panel

    @property
    def stands_out(self) -> bool:
        """Whether the corrected p is below LEVEL."""
        return self.holm is not None and self.holm < LEVEL


def compare(finals: pd.DataFrame, one: str, other: str, panel: str = POOLED) -> Comparison:
    """Compare the final scores of two series.

    Args:
        finals: a row a cell, see ``summary.finals``.
        one: a series.
        other: another one.
        panel: the task whose pairs are used; POOLED: of all tasks, each task and seed a pair.
    """
    rows = finals if panel == POOLED else finals[finals[PANEL] == panel]
    scores = rows.pivot_table(index=[PANEL, "seed"], columns=SERIES, values="score")
    pairs = scores.reindex(columns=[one, other]).dropna()
    differences = (pairs[one] - pairs[other]).to_numpy()
    test, p = _test(differences)
    mean = float(differences.mean()) if len(differences) else float("nan")
    return Comparison(panel, one, other, len(differences), mean, test, p)


def compare_all(finals: pd.DataFrame, panel: str = POOLED) -> list[Comparison]:
    """Compare all pairs of series that have common pairs; the most significant first."""
    rows = finals if panel == POOLED else finals[finals[PANEL] == panel]
    names = rows[SERIES].unique()
    found = [compare(finals, one, other, panel) for one, other in combinations(names, 2)]
    found = [each for each in found if each.n]
    known = [each for each in found if each.p is not None]
    corrected = holm([each.p for each in known if each.p is not None])
    tested = [
        Comparison(**{**vars(each), "holm": p}) for each, p in zip(known, corrected, strict=True)
    ]
    tested.sort(key=lambda each: (each.p, -abs(each.difference)))
    return tested + [each for each in found if each.p is None]


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected after Holm, in the order given."""
    order = np.argsort(values, kind="stable")
    scaled = np.asarray(values, float)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected.tolist()


def _test(differences: np.ndarray) -> tuple[str, float | None]:
    """Return the name of the test and its p, None for fewer than two pairs."""
    from scipy import stats

    name = "Wilcoxon" if len(differences) >= _WILCOXON_FROM else "paired t"
    if len(differences) < 2:
        return name, None
    if not differences.any():
        return name, 1.0
    if name == "Wilcoxon":
        return name, float(stats.wilcoxon(differences).pvalue)
    if np.ptp(differences) <= 1e-12:  # no spread to hold it against: t would be infinite
        return name, None
    return name, float(stats.ttest_1samp(differences, 0.0).pvalue)
