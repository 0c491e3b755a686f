"""What docs/results/communication.md says about the study holds in its committed table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from simulations.report.significance import compare_all
from simulations.report.summary import PANEL, SENT, SERIES, finals, front, labelled, over_seeds

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "simulations" / "studies" / "results" / "communication-small"
METHODS = ["linear", "SLaSh", "LoRA r=1", "Houlsby m=8"]


@pytest.fixture(scope="module")
def last() -> pd.DataFrame:
    return finals(labelled(pd.read_parquet(RESULTS / "table.parquet")))


@pytest.fixture(scope="module")
def means(last: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, [method, task]."""
    return over_seeds(last).pivot(index=SERIES, columns=PANEL, values="mean")


@pytest.fixture(scope="module")
def gained(last: pd.DataFrame) -> pd.DataFrame:
    """Mean points from start to end, [method, task]."""
    points = 100 * (last["score"] - last["start_score"])
    return points.groupby([last[SERIES], last[PANEL]]).mean().unstack()


def test_front_of_the_mean_scores(last: pd.DataFrame, means: pd.DataFrame) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    points = pd.DataFrame({SENT: sent, "mean": means.mean(axis=1)}).sort_values(SENT)
    assert list(points.index[front(points)]) == METHODS


def test_methods_stand_out_from_the_head_alone_and_not_from_each_other(
    last: pd.DataFrame, means: pd.DataFrame
) -> None:
    compared = compare_all(last)
    assert len(compared) == 6
    named = {frozenset({"linear", method}) for method in METHODS[1:]}
    assert {frozenset({row.one, row.other}) for row in compared if row.stands_out} == named
    of_methods = means.mean(axis=1)[METHODS[1:]]
    assert of_methods.max() - of_methods.min() == pytest.approx(0.006, abs=0.0005)
    sent = last.groupby(SERIES)[SENT].mean()
    for method, size in (("SLaSh", 62e3), ("LoRA r=1", 294e3), ("Houlsby m=8", 2.1e6)):
        assert sent[method] == pytest.approx(size, rel=0.01)


def test_the_start_alone(last: pd.DataFrame) -> None:
    slash = last[last[SERIES] == "SLaSh"]
    assert slash.groupby(PANEL)["start_score"].mean().mean() == pytest.approx(0.789, abs=0.0005)
    sums = slash["start_up_payload"] / slash["clients"]
    assert sums.mean() == pytest.approx(10_153, abs=1)
    first = slash[(slash[PANEL] == "QNLI") & (slash["seed"] == 0)].iloc[0]
    assert (round(first["start_score"], 3), round(first["score"], 3)) == (0.648, 0.769)


def test_what_training_adds(gained: pd.DataFrame) -> None:
    methods = gained.loc[METHODS[1:]]
    assert methods["QNLI"].between(7, 8).all() and methods["SST-2"].between(1.9, 4).all()
    assert gained.loc["linear", "STS-B"] == pytest.approx(-0.6, abs=0.05)
    assert (methods["STS-B"] > 0.5).all()
