"""What the README says of the communication study is what its committed table shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from simulations.report.significance import Comparison, compare, compare_all
from simulations.report.summary import PANEL, SENT, SERIES, finals, front, labelled, over_seeds

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "simulations" / "studies" / "results" / "communication-small"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())
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
    return {frozenset({each.one, each.other}): each for each in compare_all(last)}


def test_the_readmes_table_is_the_studys(last: pd.DataFrame, means: pd.DataFrame) -> None:
    spread = over_seeds(last).pivot(index=SERIES, columns=PANEL, values="deviation")
    sent, size = last.groupby(SERIES)[SENT].mean(), last.groupby(SERIES)["vector_size"].max()
    start = README.index("| method | numbers a round |")
    lines = README[start : README.index("\n\n", start)].splitlines()[2:]
    rows = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in lines)}
    assert set(rows) == set(means.index)
    assert [*rows] == [*sent.sort_values(kind="stable").loc[[*rows]].index]
    for name, (numbers, said, *scores) in rows.items():
        assert (numbers, said) == (f"{size[name]:,}", readable(sent[name]))
        assert scores == [f"{means.loc[name, t]:.3f} ({spread.loc[name, t]:.3f})" for t in TASKS]


def readable(size: float) -> str:
    if size < 1e6:
        return f"{size / 1e3:.0f} KB"
    return f"{size / 1e6:.{1 if size < 1e8 else 0}f} MB"


def test_the_front_of_the_mean_scores(last: pd.DataFrame, means: pd.DataFrame) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    points = pd.DataFrame({SENT: sent, "mean": means.mean(axis=1)}).sort_values(SENT)
    said = [f"{mean:.3f} with {readable(size)} ({name})" for name, size, mean in best(points)]
    assert len(said) == 6
    assert f"The front of the mean of the four scores is {', '.join(said[:-1])} and" in TEXT
    assert f"and {said[-1]}; the other six" in TEXT


def best(points: pd.DataFrame) -> Iterator[tuple[str, float, float]]:
    return points[front(points)].itertuples(name=None)


def test_full_and_houlsby_stand_out_and_nothing_else(
    last: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    beaten = ["linear", "SLaSh 1024", "SLaSh max", "JR-WARP 1024", "LoRA r=8"]
    claims = [("Houlsby m=8", each) for each in (*beaten, "SLaSh 256")]
    claims += [("full", each) for each in (*beaten, "BitFit", "prefix")]
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for better, worse in claims:
        found = compared[frozenset({better, worse})]
        assert (scores[better] > scores[worse]).all() and found.n == 12
        assert found.holm == pytest.approx(0.032, abs=0.0005)
    named = {frozenset(claim) for claim in claims}
    assert {pair for pair, found in compared.items() if found.stands_out} == named
    assert len(compared) == 66
    between = compare(last, "full", "Houlsby m=8")
    sent = last.groupby(SERIES)[SENT].mean()
    apart = f"{sent['full'] / sent['Houlsby m=8']:.0f} times apart in bytes"
    assert f"{apart}, nothing is shown ({between.difference:.3f} for full, p = " in TEXT
    assert f"p = {between.p:.2f} uncorrected" in TEXT


def test_slash_1024_has_the_best_mean_under_50_kb_but_does_not_stand_out(
    last: pd.DataFrame, means: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    assert means.mean(axis=1)[sent < 50_000].idxmax() == "SLaSh 1024"
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for other, corrected in (("linear", 0.052), ("JR-WARP 1024", 0.154)):
        found = compared[frozenset({"SLaSh 1024", other})]
        assert (scores["SLaSh 1024"] > scores[other]).sum() == 11
        assert not found.stands_out and found.holm == pytest.approx(corrected, abs=0.0005)
        of_tasks = means.loc["SLaSh 1024"] - means.loc[other]
        assert of_tasks.mean() == pytest.approx(0.080, abs=0.0005)
        assert of_tasks["STS-B"] / of_tasks.sum() == pytest.approx(0.9, abs=0.03)
    assert means.loc["SLaSh 256", "SST-2"] > means.loc["SLaSh 1024", "SST-2"]
    assert "0.080 above the linear head and above JR-WARP" in TEXT
    assert "does not stand out (p = 0.052 and 0.15)" in TEXT


def test_the_task_decides_what_bytes_buy(means: pd.DataFrame) -> None:
    assert means.loc["full", "STS-B"] - means.loc["LoRA r=1", "STS-B"] < 0.02
    above = set(means.index[means["QNLI"] > 0.56])
    assert above == {"LoRA r=8", "Houlsby m=8", "full"}
    assert means["SST-2"].max() - means["SST-2"].min() < 0.04
    assert round(ALWAYS_YES, 3) == 0.812
    assert (means["MRPC"] < ALWAYS_YES).sum() == 8
    assert means["MRPC"].max() - ALWAYS_YES < 0.011
    for said in (
        "within 0.02 of",
        "leave 0.56 behind",
        "within 0.04;",
        "eight of them",
        "0.011 above",
    ):
        assert said in TEXT


def test_seed_rate_and_rounds_can_weigh_as_much_as_the_method(last: pd.DataFrame) -> None:
    own = last[last[PANEL] == "STS-B"].set_index([SERIES, "seed"])
    further = pd.read_csv(RESULTS / "further.csv").groupby(["method", "seed", "lr", "rounds"])
    ends = further["pearson"].last()
    found = [f"{own.loc[('BitFit', seed), 'score']:.2f}" for seed in range(3)]
    slow = [f"{ends['BitFit', seed, 0.003, 10]:.2f}" for seed in range(3)]
    assert set(own.loc["BitFit", "lr"]) == {0.01}
    assert f"BitFit has {found[0]}, {found[1]} and {found[2]} with its three seeds" in TEXT
    assert f"0.01, and {slow[0]}, {slow[1]} and {slow[2]} at 0.003" in TEXT
    assert f"a run of twenty ({ends['BitFit', 1, 0.01, 20]:.2f})" in TEXT
    for method in ("JR-WARP 1024", "SLaSh max", "SLaSh 256"):
        seed = own.loc[method, "score"].idxmin()
        before, lr = own.loc[(method, seed), ["score", "lr"]]
        assert f"({before:.2f}, then {ends[method, seed, lr, 20]:.2f})" in TEXT


def test_searches_that_end_at_the_edge_of_their_grid() -> None:
    best = json.loads((RESULTS / "best.json").read_text())
    edges = pd.Series([bool(each["edges"]) for each in best])
    of_method = edges.groupby([each["axes"]["method"] for each in best]).sum()
    assert f"In {edges.sum()} of the {len(edges)} searches" in TEXT
    assert set(of_method.index[of_method <= 1]) == {"Houlsby m=8", "SLaSh 1024", "full"}
    many = {"linear", "JR-WARP 1024", "BitFit", "LoRA r=1", "Houlsby m=1", "prefix"}
    assert set(of_method.index[of_method >= 3]) == many
