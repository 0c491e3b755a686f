"""Comparisons against values from the definitions of the tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simulations.report.significance import POOLED, compare, compare_all, holm, wilcoxon
from simulations.report.summary import finals, labelled

Make = Callable[..., pd.DataFrame]


def last(table: Make, rows: list[tuple[str, str, int, list[float | None]]]) -> pd.DataFrame:
    return finals(labelled(table(rows)))


def test_holm_correction_equals_a_calculation_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_few_pairs_take_the_t_test(table: Make) -> None:
    """Two pairs: t = mean / (deviation / sqrt 2) has one degree of freedom, a Cauchy variable."""
    scores = {"a": [0.6, 0.9], "b": [0.5, 0.6]}  # differences 0.1 and 0.3
    rows = [("T", name, seed, [values[seed]]) for name, values in scores.items() for seed in (0, 1)]
    comparison = compare(last(table, rows), "a", "b", "T")
    t = 0.2 / (math.sqrt(0.02) / math.sqrt(2))
    assert (comparison.n, comparison.test) == (2, "paired t")
    assert comparison.difference == pytest.approx(0.2)
    assert comparison.p == pytest.approx(1 - 2 * math.atan(t) / math.pi)


def test_all_tasks_together_take_wilcoxon(table: Make) -> None:
    """Six differences of one sign: 2 of the 64 patterns of signs are as extreme."""
    rows = [
        (task, name, seed, [0.5 + 0.01 * (name == "a") * (1 + seed + 3 * (task == "U"))])
        for task in "TU"
        for name in "ab"
        for seed in (0, 1, 2)
    ]
    comparison = compare(last(table, rows), "a", "b")
    assert (comparison.n, comparison.test, comparison.panel) == (6, "Wilcoxon", POOLED)
    assert comparison.p == pytest.approx(2 / 64)


@pytest.mark.parametrize(
    "differences",
    [
        [0.1, 0.2, 0.3, -0.4, 0.5, 0.6],
        [0.1, 0.1, 0.1, -0.1, 0.3, 0.2],
        [0.0, 0.0, 0.2, 0.2, 0.3, -0.1, 0.5],
        [0.0, 0.1, 0.2, -0.3, 0.4, 0.5],
        [*[0.25, 0.25, -0.5, 0.75] * 3, 1.0],
        [*[0.25, 0.25, -0.5, 0.75] * 3, 1.0, 0.0],
    ],
    ids=["all different", "ties", "ties and zeros", "a zero", "13 with ties", "14 with ties"],
)
def test_wilcoxon_equals_scipy(differences: list[float]) -> None:
    # scipy before 1.15 takes the normal approximation for ties; 9999 exceeds the 2^13 patterns.
    method = stats.PermutationMethod(n_resamples=9999) if len(differences) <= 13 else "auto"
    expected = stats.wilcoxon(np.array(differences), method=method).pvalue
    assert wilcoxon(np.array(differences)) == pytest.approx(expected, rel=1e-12)


def test_only_common_pairs_count(table: Make) -> None:
    rows = [("T", "a", 0, [0.9]), ("T", "a", 1, [0.8]), ("T", "b", 1, [0.7]), ("U", "c", 0, [0.1])]
    (pair,) = compare_all(last(table, rows))
    assert (pair.one, pair.other, pair.n, pair.p) == ("a", "b", 1, None)
    assert not pair.stands_out


def test_equal_scores_are_no_difference_and_a_constant_one_has_no_spread(table: Make) -> None:
    scores = {"a": 0.5, "b": 0.5, "c": 0.75}
    rows = [("T", name, seed, [score]) for name, score in scores.items() for seed in (0, 1, 2)]
    p = {(pair.one, pair.other): pair.p for pair in compare_all(last(table, rows), "T")}
    assert p == {("a", "b"): 1.0, ("a", "c"): None, ("b", "c"): None}


def test_all_pairs_are_corrected_and_the_clearest_comes_first(table: Make) -> None:
    noise = [0.0, 0.011, 0.003, 0.007, 0.001, 0.013, 0.005, 0.002]
    rows = [
        ("T", name, seed, [0.5 + 0.2 * (name == "c") + (1 if name == "b" else -1) * noise[seed]])
        for name in "abc"
        for seed in range(8)
    ]
    pairs = compare_all(last(table, rows), "T")
    assert [pair.holm for pair in pairs] == pytest.approx(holm([pair.p for pair in pairs]))
    assert {(pair.one, pair.other) for pair in pairs[:2]} == {("a", "c"), ("b", "c")}
    assert pairs[0].stands_out and pairs[0].holm == pytest.approx(3 * 2 / 256)
