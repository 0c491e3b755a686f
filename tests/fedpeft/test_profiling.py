"""The stopwatch: phases apart, one inside another, and nothing where nobody watches."""

from __future__ import annotations

import time

import pytest

from fedpeft.profiling import Stopwatch, phase


def work(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_nested_phase_does_not_count_for_the_outer_one() -> None:
    began = time.perf_counter()
    with Stopwatch().running() as watch:
        work(0.02)  # of no phase
        with phase("DP"):
            work(0.02)
            with phase("forward"):
                work(0.05)
            with phase("backward"):
                work(0.01)
        with phase("forward"):
            work(0.01)
    whole = time.perf_counter() - began
    assert list(watch.seconds) == ["DP", "forward", "backward"]
    assert watch.seconds["DP"] >= 0.02
    assert watch.seconds["forward"] >= 0.06
    assert watch.seconds["backward"] >= 0.01
    assert sum(watch.seconds.values()) <= whole - 0.02


def test_errors_end_phases_from_the_inside_out() -> None:
    ended: list[str] = []
    with (
        Stopwatch(ended=ended.append).running() as watch,
        pytest.raises(ValueError, match="no"),
        phase("data"),
        phase("optimiser"),
    ):
        raise ValueError("no")
    assert ended == ["optimiser", "data"]
    assert set(watch.seconds) == {"data", "optimiser"}


def test_nothing_is_counted_without_a_running_stopwatch() -> None:
    with Stopwatch().running() as watch:
        pass
    with phase("data"):
        work(0.001)
    assert watch.seconds == {}
