"""What the README says of the communication study is what its committed table shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from simulations.report.significance import Comparison, compare, compare_all
from simulations.report.summary import PANEL, SENT, SERIES, finals, labelled, over_seeds

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "simulations" / "studies" / "results" / "communication-small"
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def signed(found: Comparison, one: str) -> float:
    return found.difference if found.one == one else -found.difference


def test_the_readmes_table_is_the_studys(last: pd.DataFrame, means: pd.DataFrame) -> None:
    spread = over_seeds(last).pivot(index=SERIES, columns=PANEL, values="deviation")
    sent, size = last.groupby(SERIES)[SENT].mean(), last.groupby(SERIES)["vector_size"].max()
    start = README.index("| method | numbers a round |")
    lines = README[start : README.index("\n\n", start)].splitlines()[2:]
    rows = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in lines)}
    assert set(rows) == set(means.index)
    assert [*rows] == [*sent.sort_values(kind="stable").loc[[*rows]].index]
    for name, (numbers, said, *scores) in rows.items():
        assert numbers == f"{size[name]:,}"
        value, unit = said.split()
        assert float(value) == pytest.approx(sent[name] / {"KB": 1e3, "MB": 1e6}[unit], rel=0.03)
        assert scores == [f"{means.loc[name, t]:.3f} ({spread.loc[name, t]:.3f})" for t in TASKS]


def test_scores_rise_with_bytes_from_linear_to_full(means: pd.DataFrame) -> None:
    rising = ["linear", "SLaSh 1024", "LoRA r=1", "Houlsby m=8", "full"]
    mean = means.mean(axis=1)
    assert mean[rising].round(3).tolist() == [0.626, 0.706, 0.737, 0.787, 0.810]


def test_full_and_houlsby_stand_out(
    last: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    beaten = ["linear", "SLaSh 1024", "SLaSh max", "JR-WARP 1024", "LoRA r=8"]
    claims = [("Houlsby m=8", each) for each in beaten]
    claims += [("full", each) for each in (*beaten, "BitFit", "prefix")]
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for better, worse in claims:
        found = compared[frozenset({better, worse})]
        assert (scores[better] > scores[worse]).all() and found.n == 12
        assert found.stands_out and found.holm == pytest.approx(0.032, abs=0.0005)
    between = compare(last, "full", "Houlsby m=8")
    assert between.p == pytest.approx(0.13, abs=0.005)
    assert between.difference == pytest.approx(0.023, abs=0.0005)
    sent = last.groupby(SERIES)[SENT].mean()
    assert sent["full"] / sent["Houlsby m=8"] == pytest.approx(285, abs=0.5)


def test_slash_1024_has_the_best_mean_under_50_kb_but_does_not_stand_out(
    last: pd.DataFrame, means: pd.DataFrame, compared: dict[frozenset[str], Comparison]
) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    assert means.mean(axis=1)[sent < 50_000].idxmax() == "SLaSh 1024"
    scores = last.pivot(index=[PANEL, "seed"], columns=SERIES, values="score")
    for other, corrected in (("linear", 0.052), ("JR-WARP 1024", 0.154)):
        found = compared[frozenset({"SLaSh 1024", other})]
        assert signed(found, "SLaSh 1024") == pytest.approx(0.080, abs=0.0005)
        assert (scores["SLaSh 1024"] > scores[other]).sum() == 11
        assert not found.stands_out and found.holm == pytest.approx(corrected, abs=0.0005)
        of_tasks = means.loc["SLaSh 1024"] - means.loc[other]
        assert of_tasks["STS-B"] > of_tasks.sum() / 2


def test_the_task_decides_what_bytes_buy(last: pd.DataFrame, means: pd.DataFrame) -> None:
    sent = last.groupby(SERIES)[SENT].mean()
    assert means.loc["full", "STS-B"] - means.loc["LoRA r=1", "STS-B"] < 0.02
    assert means["QNLI"][sent < 1.7e6].max() < 0.56
    assert means["SST-2"].max() - means["SST-2"].min() < 0.04
    assert round(ALWAYS_YES, 3) == 0.812
    assert means["MRPC"].max() - ALWAYS_YES < 0.011


def test_bitfit_scatters_and_searches_end_at_the_edge(last: pd.DataFrame) -> None:
    own = last[(last[SERIES] == "BitFit") & (last[PANEL] == "STS-B")].set_index("seed")
    assert own["score"].round(2).to_dict() == {0: 0.82, 1: 0.08, 2: 0.72}
    assert set(own["lr"]) == {0.01}
    best = json.loads((RESULTS / "best.json").read_text())
    said = re.search(r"In (\d+) of the (\d+) searches", README)
    assert said
    edges = sum(bool(each["edges"]) for each in best)
    assert (edges, len(best)) == tuple(map(int, said.groups()))
