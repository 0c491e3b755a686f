"""Significance of the differences between series over tasks and seeds.

Two series are compared on pairs of the same task and seed: by the paired t-test up to five pairs,
by Wilcoxon's signed-rank test, which assumes no distribution, from six on. When all pairs of
series are compared, p is corrected for multiple comparisons (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from simulations.report.summary import PANEL, SERIES

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
POOLED = "all tasks"
_WILCOXON_FROM = 6  # pairs; with fewer its smallest p is above 0.05
_ALL_SIGNS = 13  # pairs; up to here scipy tries all patterns of signs if some are tied or zero


@dataclass(frozen=True)
class Comparison:
    """Comparison of two series on their common pairs; ``p`` is two-sided, None if undefined."""

    panel: str
    one: str
    other: str
    n: int
    difference: float  # mean of one minus other
    test: str
    p: float | None
    holm: float | None = None  # p corrected for all comparisons of the panel

    @property
    def stands_out(self) -> bool:
        """Whether the corrected p is below LEVEL."""
        return self.holm is not None and self.holm < LEVEL


def compare(finals: pd.DataFrame, one: str, other: str, panel: str = POOLED) -> Comparison:
    """Compare the final scores of two series.

    Args:
        finals: one row per cell, see ``summary.finals``.
        one: a series.
        other: another series.
        panel: the task whose pairs are used; POOLED uses the pairs of all tasks.
    """
    rows = finals if panel == POOLED else finals[finals[PANEL] == panel]
    scores = rows.pivot_table(index=[PANEL, "seed"], columns=SERIES, values="score")
    pairs = scores.reindex(columns=[one, other]).dropna()
    differences = (pairs[one] - pairs[other]).to_numpy()
    test, p = tested(differences)
    mean = float(differences.mean()) if len(differences) else float("nan")
    return Comparison(panel, one, other, len(differences), mean, test, p)


def compare_all(finals: pd.DataFrame, panel: str = POOLED) -> list[Comparison]:
    """Compare all pairs of series that have common pairs, most significant first."""
    rows = finals if panel == POOLED else finals[finals[PANEL] == panel]
    names = rows[SERIES].unique()
    pairs = [compare(finals, one, other, panel) for one, other in combinations(names, 2)]
    known = [pair for pair in pairs if pair.p is not None]
    corrected = holm([pair.p for pair in known if pair.p is not None])
    tested = [replace(pair, holm=p) for pair, p in zip(known, corrected, strict=True)]
    tested.sort(key=lambda pair: (pair.p, -abs(pair.difference)))
    return tested + [pair for pair in pairs if pair.n and pair.p is None]


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction, in the same order."""
    order = np.argsort(values, kind="stable")
    scaled = np.asarray(values, float)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected.tolist()


def tested(differences: np.ndarray) -> tuple[str, float | None]:
    """Return the name of the test and p; None if it is undefined."""
    from scipy import stats

    name = "Wilcoxon" if len(differences) >= _WILCOXON_FROM else "paired t"
    if len(differences) < 2:
        return name, None
    if not differences.any():
        return name, 1.0
    if name == "Wilcoxon":
        return name, wilcoxon(differences)
    if np.ptp(differences) <= 1e-12:  # no spread: t would be infinite
        return name, None
    return name, float(stats.ttest_1samp(differences, 0.0).pvalue)


def wilcoxon(differences: np.ndarray) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test, as ``scipy.stats.wilcoxon`` does.

    Where differences are tied or zero, scipy ranks them again for each of the 2^n patterns of
    signs, which takes up to a second; here the ranks are computed once.
    """
    from scipy import stats

    sizes = np.abs(differences)
    zeros = int((sizes == 0).sum())
    tied = zeros or len(np.unique(sizes)) < len(sizes)
    if not tied or len(sizes) > _ALL_SIGNS:
        return float(stats.wilcoxon(differences).pvalue)
    ranks = np.where(sizes > 0, stats.rankdata(sizes) - zeros, 0.0)

    def sum_of_positive(signed: np.ndarray, axis: int) -> np.ndarray:
        return (ranks * (signed > 0)).sum(axis)

    return float(
        stats.permutation_test(
            (differences,), sum_of_positive, permutation_type="samples", vectorized=True
        ).pvalue
    )
