"""The figures for a GPU, taken small on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.benchmarks import throughput

SMALL = ["--sizes", "tiny", "tiny", "--clients", "3", "--batch", "2", "--tokens", "8"]
OPTIONS = [*SMALL, "--matrix", "32", "--threads", "1", "--autocast", "off", "--repeats", "2"]


def test_both_parts_are_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    cohort, rate = throughput.main([*OPTIONS, "--results", str(tmp_path)])
    kept(cohort, "throughput", "cohort, roberta-tiny, cpu")
    kept(rate, "throughput", "rate, roberta-tiny, cpu")
    assert cohort.table[0]["figure"] == "3 clients together / one by one"
    assert cohort.table[0]["at least"] == throughput.COHORT_TARGET
    assert rate.table[0]["at least"] == throughput.RATE_TARGET
    assert all("not measured" in report.facts["CUDA"] for report in (cohort, rate))


def test_a_cohort_that_trains_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = throughput.train_cohort

    def swapped(model, start, data, *rest):  # type: ignore[no-untyped-def]
        return train(model, start, data[::-1], *rest)

    monkeypatch.setattr(throughput, "train_cohort", swapped)
    with pytest.raises(SystemExit, match="apart from its clients"):
        throughput.main([*OPTIONS, "--results", str(tmp_path)])
