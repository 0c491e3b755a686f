"""Statistics against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import pytest

from simulations.report import summary
from simulations.report.summary import SENT

Make = Callable[..., pd.DataFrame]


def test_series_are_the_combinations_of_the_axes(table: Make) -> None:
    frame = table([("T", "a", 0, [0.5]), ("T", "b", 0, [0.5])])
    frame["axis.clients"], frame["axis.alpha"] = "10", ["1", "0.1"]
    frame = summary.labelled(frame)
    assert frame["panel"].tolist() == ["T", "T"]
    assert frame["series"].tolist() == ["a · 1", "b · 0.1"]  # all cells have the same clients
    assert frame["hue"].tolist() == ["a", "b"]
    assert frame[SENT].tolist() == [100.0, 100.0]


def test_without_axes_task_and_method_name_panel_and_series(table: Make) -> None:
    frame = table([("T", "a", 0, [0.5]), ("T", "a", 1, [0.5])])
    frame = summary.labelled(frame.drop(columns=["axis.task", "axis.method"]))
    assert set(frame["panel"]) == {"t"} and set(frame["series"]) == {"a"}


def test_the_last_score_is_averaged_over_seeds(table: Make) -> None:
    rows = [("T", "a", 0, [0.9, 0.6, None]), ("T", "a", 1, [0.1, 0.8]), ("T", "b", 0, [0.5])]
    means = summary.over_seeds(summary.finals(summary.labelled(table(rows))))
    assert means["series"].tolist() == ["a", "b"]
    assert means["mean"].tolist() == pytest.approx([0.7, 0.5])
    assert means["deviation"][0] == pytest.approx(math.sqrt(0.02))  # n - 1
    assert math.isnan(means["deviation"][1])
    assert means["n"].tolist() == [2, 1]
    assert means[SENT].tolist() == [200.0, 100.0]


@pytest.mark.parametrize(
    ("points", "on_front"),
    [
        ([(1, 0.5), (2, 0.6), (3, 0.55)], [True, True, False]),
        ([(1, 0.5), (1, 0.6)], [False, True]),  # same bytes, lower score
        ([(1, 0.5), (2, 0.5)], [True, False]),  # same score, more bytes
        ([(1, 0.5), (1, 0.5)], [True, True]),  # equal in both
        ([(5, 0.1)], [True]),
        ([(1, 0.9), (2, 0.1), (3, 0.2)], [True, False, False]),
    ],
)
def test_the_pareto_front_excludes_dominated_points(
    points: list[tuple[float, float]], on_front: list[bool]
) -> None:
    frame = pd.DataFrame(points, columns=[SENT, "mean"], index=range(7, 7 + len(points)))
    mask = summary.front(frame)
    assert mask.tolist() == on_front
    assert mask.index.equals(frame.index)


def test_targets_are_given_by_label_or_name_or_lie_near_the_best() -> None:
    points = pd.DataFrame(
        {
            "panel": ["A", "A", "B", "C"],
            "task": ["a", "a", "b", "c"],
            "mean": [0.5, 0.7, 0.4, 0.3],
        }
    )
    targets = summary.targets_of(points, {"B": 0.8, "c": 0.9})
    assert targets == pytest.approx({"A": 0.5 + 0.95 * 0.2, "B": 0.8, "C": 0.9})


def test_rounds_and_bytes_to_a_target(table: Make) -> None:
    rows = [
        ("T", "a", 0, [0.5, 0.8, 0.7]),  # reached in round 2, whatever comes later
        ("T", "a", 1, [0.5, None, 0.9]),
        ("T", "a", 2, [0.5, 0.6, 0.6]),
        ("T", "b", 0, [0.1, 0.1, 0.1]),
    ]
    rows_to_target = summary.to_target(summary.labelled(table(rows)), {"T": 0.8})
    a, b = rows_to_target.to_dict("records")
    assert (a["series"], a["seeds"], a["reached"], a["target"]) == ("a", 3, 2, 0.8)
    assert (a["round"], a[SENT], a["messages"]) == (2.5, 250.0, 2.5 * 700)
    assert (b["seeds"], b["reached"]) == (1, 0)
    assert math.isnan(b["round"]) and math.isnan(b[SENT])


def test_score_within_a_budget(table: Make) -> None:
    rows = [("T", "a", 0, [0.5, 0.8, 0.7]), ("T", "a", 1, [0.7, None, 0.9]), ("T", "b", 0, [0.4])]
    frame = summary.labelled(table(rows, {"b": 10}))
    within = summary.at_budgets(frame, [99, 100, 250, 1000])
    scores = {(row.series, row.budget): (row.mean, row.n) for row in within.itertuples()}
    assert scores == {
        ("a", 100): (pytest.approx(0.6), 2),
        ("a", 250): (pytest.approx(0.75), 2),  # 0.8, and 0.7 as round 2 was not evaluated
        ("a", 1000): (pytest.approx(0.8), 2),
        ("b", 1000): (0.4, 1),
    }


def test_budgets_are_round_and_spread(table: Make) -> None:
    rows = [("T", "a", 0, [0.5]), ("T", "b", 0, [0.5])]
    frame = summary.labelled(table(rows, {"b": 10_000}))  # from 100 to 1,000,000 bytes
    assert summary.round_budgets(frame) == [1e3, 1e4, 1e5]
    assert len(summary.round_budgets(frame[frame["method"] == "a"])) == 1


def test_epsilon_is_an_axis_only_where_cells_differ_in_it(table: Make) -> None:
    frame = table([("T", "a", 0, [0.5]), ("T", "b", 0, [0.5])] * 2)
    frame["target_epsilon"] = [1.0, 1.0, None, None]
    assert summary.epsilon_axis(frame) is None
    frame["axis.epsilon"] = ["one", "one", "none", "none"]
    assert summary.epsilon_axis(frame) == "axis.epsilon"
    frame["target_epsilon"] = 1.0
    assert summary.epsilon_axis(frame) is None
