"""The bfloat16 benchmark runs on `tiny` and records both of its tables."""

from __future__ import annotations

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
