"""The bfloat16 benchmark runs on `tiny` and records both of its tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from simulations.benchmarks import autocast


def test_both_tables_are_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    options = ["--backbone", "tiny", "--examples", "16", "--repeats", "2"]
    training, attention = autocast.main(
        [*options, "--methods", "bitfit", "full", "--results", str(tmp_path)]
    )
    kept(training, "autocast", "training, tiny")
    kept(attention, "autocast", "attention")
    figures = [row["figure"] for row in training.table]
    assert figures == [f"training, synthetic/sentiment, {name}" for name in ("bitfit", "full")]
    assert len(attention.table) == len(autocast.TOKENS)


def test_a_wrong_folder_is_one_line(tmp_path: Path) -> None:
    """As every benchmark's command that loads its task itself."""
    command = [sys.executable, "-m", "simulations.benchmarks.autocast", "--backbone", "tiny"]
    missing = tmp_path / "missing"
    ended = subprocess.run(
        [*command, "--methods", "bitfit", "--glue", str(missing)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: task.path = '{missing}': no file for task 'sst2'")
    assert ended.stderr.count("\n") == 1 and not ended.stdout
