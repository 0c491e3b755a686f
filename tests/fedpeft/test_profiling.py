"""The stopwatch: phases apart, one inside another, and nothing where nobody watches."""

from __future__ import annotations

import time

import pytest

from fedpeft.profiling import Stopwatch, phase


def work(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_phase_inside_another_takes_its_time_from_it() -> None:
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


def test_phases_are_told_when_they_finish_and_errors_end_them() -> None:
    told: list[str] = []
    with (
        Stopwatch(ended=told.append).running() as watch,
        pytest.raises(ValueError, match="no"),
        phase("data"),
        phase("optimiser"),
    ):
        raise ValueError("no")
    assert told == ["optimiser", "data"]
    assert set(watch.seconds) == {"data", "optimiser"}


def test_nothing_is_counted_unwatched() -> None:
    with Stopwatch().running() as watch:
        pass
    with phase("data"):
        work(0.001)
    assert watch.seconds == {}
