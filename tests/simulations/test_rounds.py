"""Rounds as flat rows, the same numbers as a study's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.measured import measured
from simulations.simulation import complete
from simulations.study.cells import Cell
from simulations.study.table import Finished, table_of


def test_rows_are_those_of_a_studys_table(quick: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = quick("federation.rounds=3", "output.eval_every=2")
    result = complete(experiment, tmp_path / "run")
    lines = RunFolder(tmp_path / "run").rounds()
    table = table_of([(Cell({}, experiment), Finished(result, lines))])
    for row, (_, expected) in zip(measured(lines), table.iterrows(), strict=True):
        assert row.pop("seconds") > 0
        for name in set(row) - {"sent_down_payload"}:  # the table has no column for it
            same = row[name] == expected[name]
            assert same or (row[name] is None and expected.isna()[name]), name
    assert row["sent_down_payload"] == result["bytes"]["down"]["payload"]


def test_nothing_measured_gives_no_rows() -> None:
    assert measured([]) == []
