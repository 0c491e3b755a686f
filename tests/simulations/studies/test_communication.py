"""What docs/results/communication.md says about the study holds in its committed table."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from simulations.report.significance import Comparison, compare, compare_all
from simulations.report.summary import PANEL, SENT, SERIES, finals, front, labelled, over_seeds

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "simulations" / "studies" / "results" / "communication-small"
TASKS = ["SST-2", "MRPC", "STS-B", "QNLI"]
#: F1 on MRPC's dev set (279 of 408 are paraphrases) of always saying yes.
ALWAYS_YES = 2 * 279 / (279 + 408)


@pytest.fixture(scope="module")
def last() -> pd.DataFrame:
    return finals(labelled(pd.read_parquet(RESULTS / "table.parquet")))


@pytest.fixture(scope="module")
def means(last: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, [method, task]."""
    return over_seeds(last).pivot(index=SERIES, columns=PANEL, values="mean")


@pytest.fixture(scope="module")
def compared(last: pd.DataFrame) -> dict[frozenset[str], Comparison]:
    return {frozenset({row.one, row.other}): row for row in compare_all(last)}


def test_front_of_the_mean_scores(last: pd.DataFrame, means: pd.DataFrame) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    points = pd.DataFrame({SENT: sent, "mean": means.mean(axis=1)}).sort_values(SENT)
    best = ["linear", "SLaSh 1024", "LoRA r=1", "LoRA r=8", "Houlsby m=8", "full"]
    assert list(points.index[front(points)]) == best


def test_full_and_houlsby_stand_out_and_nothing_else(
    last: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    beaten = ["linear", "SLaSh 1024", "SLaSh max", "JR-WARP 1024", "LoRA r=8"]
    claims = [("Houlsby m=8", row) for row in (*beaten, "SLaSh 256")]
    claims += [("full", row) for row in (*beaten, "BitFit", "prefix")]
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for better, worse in claims:
        comparison = compared[frozenset({better, worse})]
        assert (scores[better] > scores[worse]).all() and comparison.n == 12
        assert comparison.holm == pytest.approx(0.032, abs=0.0005)
    named = {frozenset(claim) for claim in claims}
    assert {pair for pair, comparison in compared.items() if comparison.stands_out} == named
    assert len(compared) == 66
    between = compare(last, "full", "Houlsby m=8")
    sent = last.groupby(SERIES)[SENT].mean()
    assert sent["full"] / sent["Houlsby m=8"] == pytest.approx(285, abs=0.5)
    assert between.difference == pytest.approx(0.023, abs=0.0005)
    assert between.p == pytest.approx(0.13, abs=0.005)


def test_slash_1024_has_the_best_mean_under_50_kb_but_does_not_stand_out(
    last: pd.DataFrame, means: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    assert means.mean(axis=1)[sent < 50_000].idxmax() == "SLaSh 1024"
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for other, corrected in (("linear", 0.052), ("JR-WARP 1024", 0.154)):
        comparison = compared[frozenset({"SLaSh 1024", other})]
        assert (scores["SLaSh 1024"] > scores[other]).sum() == 11
        assert not comparison.stands_out and comparison.holm == pytest.approx(corrected, abs=0.0005)
        of_tasks = means.loc["SLaSh 1024"] - means.loc[other]
        assert of_tasks.mean() == pytest.approx(0.080, abs=0.0005)
        assert of_tasks["STS-B"] / of_tasks.sum() == pytest.approx(0.9, abs=0.03)
    assert means.loc["SLaSh 256", "SST-2"] > means.loc["SLaSh 1024", "SST-2"]


def test_the_gain_of_more_bytes_depends_on_the_task(means: pd.DataFrame) -> None:
    assert means.loc["full", "STS-B"] - means.loc["LoRA r=1", "STS-B"] < 0.02
    above = set(means.index[means["QNLI"] > 0.56])
    assert above == {"LoRA r=8", "Houlsby m=8", "full"}
    assert means["SST-2"].max() - means["SST-2"].min() < 0.04
    assert round(ALWAYS_YES, 3) == 0.812
    assert (means["MRPC"] < ALWAYS_YES).sum() == 8
    assert means["MRPC"].max() - ALWAYS_YES < 0.011


def test_seed_rate_and_rounds_can_weigh_as_much_as_the_method(last: pd.DataFrame) -> None:
    per_seed = last[last[PANEL] == "STS-B"].set_index([SERIES, "seed"])
    further = pd.read_csv(RESULTS / "further.csv").groupby(["method", "seed", "lr", "rounds"])
    ends = further["pearson"].last()
    assert set(per_seed.loc["BitFit", "lr"]) == {0.01}
    at_best = [round(per_seed.loc[("BitFit", seed), "score"], 2) for seed in range(3)]
    slower = [round(ends["BitFit", seed, 0.003, 10], 2) for seed in range(3)]
    assert at_best == [0.82, 0.08, 0.72] and slower == [0.80, 0.73, 0.74]
    assert round(ends["BitFit", 1, 0.01, 20], 2) == 0.83
    for method, worst, longer in (
        ("JR-WARP 1024", 0.22, 0.59),
        ("SLaSh max", 0.45, 0.80),
        ("SLaSh 256", 0.08, 0.05),
    ):
        seed = per_seed.loc[method, "score"].idxmin()
        score, lr = per_seed.loc[(method, seed), ["score", "lr"]]
        assert (round(score, 2), round(ends[method, seed, lr, 20], 2)) == (worst, longer)


def test_searches_that_end_at_the_edge_of_their_grid() -> None:
    best = json.loads((RESULTS / "best.json").read_text())
    edges = pd.Series([bool(row["edges"]) for row in best])
    of_method = edges.groupby([row["axes"]["method"] for row in best]).sum()
    assert (edges.sum(), len(edges)) == (27, 48)
    assert set(of_method.index[of_method <= 1]) == {"Houlsby m=8", "SLaSh 1024", "full"}
    many = {"linear", "JR-WARP 1024", "BitFit", "LoRA r=1", "Houlsby m=1", "prefix"}
    assert set(of_method.index[of_method >= 3]) == many
