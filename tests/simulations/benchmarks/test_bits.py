"""Comparison of codecs from a study's table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats
from small_studies import BASE, here

from fedpeft.errors import UserError
from simulations.benchmarks.bits import main
from simulations.benchmarks.parts.codec_pairs import (
    chosen_between,
    compared,
    interval,
    lowest,
    measured,
    verdict,
)
from simulations.benchmarks.parts.fronts import CODED, EARLIER, fronts_of
from simulations.study.display import StudyDisplay
from simulations.study.execution import run_study
from simulations.study.file import parse
from simulations.study.folder import StudyFolder
from simulations.study.plan import Plan
from simulations.study.table import PARQUET

STUDY = (
    BASE
    + """
[axes]
seed = [0, 1]
wire = [
    { label = "float32" },
    { label = "one bit", wire.up = "eden1", wire.down = "delta1" },
]
method = [
    { label = "SLaSh", method.name = "slash", method.d = 16 },
    { label = "LoRA", method.name = "lora", method.rank = 1 },
]
"""
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two codecs."""
    path = tmp_path_factory.mktemp("codecs") / "small"
    folder = StudyFolder.create(path, STUDY, resume=False)
    with StudyDisplay(folder, Console(quiet=True)) as display:
        run_study(folder, Plan(parse(STUDY)), here, display)
    return path


def _cells(rows: list[tuple[str, str, str, int, float, float]]) -> pd.DataFrame:
    """Return cells of (method, wire, task, seed, score, up)."""
    cells = pd.DataFrame(rows, columns=["method", "wire", "task", "seed", "score", "up"])
    codecs = [("float32",) * 2 if wire == "32" else ("eden1",) * 2 for wire in cells["wire"]]
    return cells.assign(codecs=codecs, down=100.0, whole=1000)


def test_a_study_is_compared_and_recorded(study: Path, tmp_path: Path) -> None:
    main([str(study), "--results", str(tmp_path), "--case", "tiny"])
    case = json.loads((tmp_path / "bits.json").read_text())["tiny"]
    rows = {(row["method"], row["codec"]): row for row in case["table"]}
    assert set(rows) == {(m, w) for m in ("SLaSh", "LoRA") for w in ("float32", "one bit")}
    whole, coded = rows["LoRA", "float32"], rows["LoRA", "one bit"]
    assert whole["points"] == 0 and whole["within"] == "yes" and whole["pairs"] == 2
    assert coded["bytes up"] < whole["bytes up"] and coded["bytes down"] < whole["bytes down"]
    assert "<svg" in (tmp_path / "bits-tiny.svg").read_text()


def test_messages_are_those_of_the_byte_ledger(study: Path) -> None:
    cells = measured(pd.read_parquet(study / PARQUET))
    for name, cell in cells.iterrows():
        lines = (study / "cells" / str(name) / "bytes.jsonl").read_text().splitlines()
        sent = [json.loads(line) for line in lines]
        train = [line for line in sent if line["kind"] == "train"]
        assert cell["up"] == np.mean([line["up"]["message"] for line in train])
        assert cell["down"] == np.mean([line["down"]["message"] for line in train])


def test_differences_are_paired_by_method_task_and_seed() -> None:
    rows = [
        ("a", "32", "T", 0, 0.50, 900.0),
        ("a", "32", "T", 1, 0.70, 900.0),
        ("a", "1", "T", 0, 0.49, 100.0),
        ("a", "1", "T", 1, 0.67, 100.0),
        ("a", "1", "T", 2, 0.10, 100.0),  # no float32 run: not a pair
        ("b", "32", "T", 0, 0.90, 900.0),
        ("b", "1", "T", 0, 0.90, 100.0),
    ]
    found = compared(_cells(rows)).set_index(["method", "wire"])
    assert found.loc[("a", "1"), "points"] == pytest.approx(-2.0)
    assert found.loc[("a", "1"), "n"] == 2
    assert found.loc[("a", "1"), "smaller_up"] == pytest.approx(10.0)
    assert found.loc[("b", "1"), "verdict"] == "unclear"  # one pair has no interval
    assert math.isinf(found.loc[("b", "1"), "low"])


def test_cells_keep_their_codecs_whatever_their_names_order() -> None:
    table = pd.DataFrame(
        {
            "cell": ["b", "a"],
            "axis.wire": ["32", "1"],
            "axis.method": ["slash", "slash"],
            "axis.task": ["sst2", "sst2"],
            "seed": [0, 0],
            "last": [True, True],
            "score": [0.9, 0.8],
            "up_codec": ["float32", "eden1"],
            "down_codec": ["float32", "delta1"],
            "succeeded": [1, 1],
            "failed": [0, 0],
            "sent_up_message": [400, 40],
            "sent_down_message": [300, 30],
            "vector_size": [100, 100],
        }
    )
    cells = measured(table)
    assert cells.loc["b", "codecs"] == ("float32", "float32")
    assert cells.loc["a", "codecs"] == ("eden1", "delta1")
    found = compared(cells).set_index("wire")
    assert found.loc["1", "points"] == pytest.approx(-10)


def test_two_ways_are_compared_over_the_pairs_that_both_have() -> None:
    rows = [
        *(("big", "1", "sst2", seed, 0.8 + 0.01 * seed, 400.0) for seed in range(3)),
        *(("small", "4", "sst2", seed, 0.7, 600.0) for seed in (2, 1)),
    ]
    found = chosen_between(_cells(rows), ("big", "1"), ("small", "4"))
    assert found is not None
    assert (found.pairs, found.bytes_up) == (2, (400.0, 600.0))
    assert found.points == pytest.approx(11.5)
    assert found.bounds[0] < 11.5 < found.bounds[1]
    assert chosen_between(_cells(rows), ("big", "1"), ("absent", "4")) is None


def test_interval_is_the_one_of_the_t_test() -> None:
    values = np.array([0.3, -1.2, 0.8, 0.1, -0.4])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.9, 0.2, "yes"), (-3.0, -1.1, "no"), (-1.5, 0.5, "unclear"), (0.1, 2.0, "yes")],
)
def test_a_loss_is_accepted_only_if_the_whole_interval_is(
    low: float, high: float, expected: str
) -> None:
    assert verdict(low, high) == expected


def test_the_lowest_codec_is_the_one_with_the_fewest_bytes_within_the_loss() -> None:
    rows = [
        (m, w, "T", seed, score, up)
        for seed in (0, 1, 2)
        for m, w, score, up in [
            ("a", "32", 0.7, 900.0),
            ("a", "1", 0.7, 100.0),
            ("a", "0.2", 0.5, 20.0),
        ]
    ]
    assert lowest(compared(_cells(rows))) == {"a": "1"}


def test_the_front_leaves_out_series_without_all_pairs() -> None:
    rows = [
        ("a", "32", "T", 0, 0.7, 900.0),
        ("a", "1", "T", 0, 0.6, 100.0),
        ("a", "32", "U", 0, 0.7, 900.0),
        ("a", "1", "U", 0, 0.6, 100.0),
        ("b", "1", "T", 0, 0.9, 10.0),  # has not run on U
    ]
    fronts = fronts_of(_cells(rows))
    assert fronts.front[CODED]["label"].tolist() == ["a · 1", "a · 32"]
    assert fronts.front[EARLIER]["client_sent"].tolist() == [1000.0]


def test_a_folder_without_a_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist; expected a study"):
        main([str(tmp_path), "--results", str(tmp_path)])


def test_a_study_without_codecs_is_one_line(tmp_path: Path) -> None:
    pd.DataFrame({"axis.method": ["a"]}).to_parquet(tmp_path / PARQUET)
    with pytest.raises(UserError, match=r"has no axis\.wire; expected a study of codecs"):
        main([str(tmp_path), "--results", str(tmp_path)])
