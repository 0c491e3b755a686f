"""The benchmark of start-up times: what it looks for, and that it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.benchmarks import startup
from simulations.benchmarks.common import child


def test_heavy_packages_are_found_wherever_they_come_from() -> None:
    assert startup.heavy_imports("pass") == "none"
    assert startup.heavy_imports("from scipy import special") == "scipy"
    assert startup.heavy_imports(startup.HELP) == "none"


def test_a_command_is_timed_to_its_end_and_must_succeed() -> None:
    assert startup.seconds_of(child("import time; time.sleep(0.3)")) > 0.3
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        startup.seconds_of(child("1 / 0"))


@pytest.mark.slow
def test_it_is_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    options = ["--backbone", "tiny", "--repeats", "1", "--results", str(tmp_path)]
    report = startup.main(options)
    kept(report, "startup", "tiny")
    assert [row["figure"] for row in report.table] == [
        "fedpeft --help",
        "fedpeft simulate, tiny, until round 1",
        "import clients.app",
        "import clients.relay",
    ]
    assert [row["at most"] for row in report.table] == [startup.TARGET, "-", "-", "-"]
    assert report.facts["heavy packages that --help imports"] == "none"
