"""What the benchmarks' tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulations.benchmarks.common import Report

Kept = Callable[[Report, str, str], dict[str, Any]]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Return a reader of what a benchmark recorded in ``tmp_path``, equal to its report."""

    def read(report: Report, name: str, case: str) -> dict[str, Any]:
        found = json.loads((tmp_path / f"{name}.json").read_text())[case]
        assert found["table"] == report.table and found["raw"]
        assert found["command"].startswith(f"python -m simulations.benchmarks.{name} ")
        page = (tmp_path / f"{name}.md").read_text()
        assert f"## {case}" in page and f"| {' | '.join(report.table[0])} |" in page
        for row in report.table:
            assert 0 < row["least"] <= row["ratio"] <= row["largest"], row
        return found

    return read
