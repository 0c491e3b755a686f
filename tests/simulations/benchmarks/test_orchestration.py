"""The benchmark of what a study costs around its runs, run small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.benchmarks import orchestration


@pytest.mark.slow
def test_study_and_loop_are_measured_on_the_same_cells(
    tmp_path: Path, kept: Callable[..., object]
) -> None:
    options = ["--backbone", "tiny", "--rounds", "1", "--examples", "40", "--repeats", "1"]
    (report,) = orchestration.main([*options, "--results", str(tmp_path)])
    kept(report, "orchestration", "tiny")
    assert report.settings["cells"] == 8
    assert [row["figure"] for row in report.table] == ["wall s", "CPU s"]
    (share,) = (value for value in report.facts.values() if isinstance(value, float))
    assert 0 < share < 1
    assert all(row["study s"] > 0 and row["loop s"] > 0 for row in report.table)
