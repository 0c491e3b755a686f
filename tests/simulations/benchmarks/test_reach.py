"""Rounds and bytes until a share of a reference's score, from a study's table."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from small_studies import BASE, here

from fedpeft.errors import UserError
from simulations.benchmarks.reach import main, rows_of
from simulations.study.display import StudyDisplay
from simulations.study.execution import run_study
from simulations.study.file import parse
from simulations.study.folder import StudyFolder
from simulations.study.plan import Plan

STUDY = (
    BASE
    + """
[axes]
seed = [0, 1]
method = [
    { label = "full", method.name = "slash", method.d = 16 },
    { label = "bitfit", method.name = "bitfit" },
]
"""
)


def table(scores: dict[tuple[str, int], list[float]]) -> pd.DataFrame:
    """Return a frame of (series, seed) -> scores; round r has sent 10 r bytes up and 5 r down."""
    return pd.DataFrame(
        {
            "cell": f"{series}-{seed}",
            "panel": "SST-2",
            "series": series,
            "seed": seed,
            "round": number,
            "score": score,
            "metric": "accuracy",
            "client_sent": 10.0 * number,
            "sent_up_message": 10 * number,
            "sent_down_message": 5 * number,
        }
        for (series, seed), values in scores.items()
        for number, score in enumerate(values, 1)
    )


def test_the_first_round_that_scores_as_much_counts() -> None:
    frame = table(
        {
            ("full", 0): [0.5, 0.97, 1.0],
            ("full", 1): [0.5, 1.0, 1.0],
            ("small", 0): [0.95, 0.6, 0.98],
            ("small", 1): [0.5, 0.6, 0.7],
        }
    )
    rows = {(row["share"], row["series"]): row for row in rows_of(frame, "full")}
    assert [rows[0.95, "full"][key] for key in ("reached", "rounds")] == ["2 of 2", 2.0]
    assert [rows[0.99, "full"][key] for key in ("reached", "rounds")] == ["2 of 2", 2.5]
    small = rows[0.95, "small"]
    assert (small["reached"], small["rounds"], small["last score"]) == ("1 of 2", 1.0, 0.84)
    assert (small["payload up per client"], small["messages up and down"]) == (10, 15)
    never = rows[0.99, "small"]
    assert never["reached"] == "0 of 2" and never["rounds"] is None
    with pytest.raises(UserError, match=r"--reference 'lora': is no series .* full, small"):
        rows_of(frame, "lora")


def test_a_study_is_recorded(tmp_path: Path) -> None:
    folder = StudyFolder.create(tmp_path / "small", STUDY, resume=False)
    with StudyDisplay(folder, Console(quiet=True)) as display:
        run_study(folder, Plan(parse(STUDY)), here, display)
    main([str(tmp_path / "small"), "--results", str(tmp_path)])
    rows = json.loads((tmp_path / "reach.json").read_text())["small"]["table"]
    assert {(row["share"], row["series"]) for row in rows} == {
        (share, name) for share in (0.95, 0.99) for name in ("full", "bitfit")
    }
    with pytest.raises(UserError, match="does not exist; expected a study"):
        main([str(tmp_path / "none"), "--results", str(tmp_path)])
