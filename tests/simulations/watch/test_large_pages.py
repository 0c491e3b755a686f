"""Ten thousand rounds and a thousand runs: the page stays quick, and watching costs little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import set_screen
from made import add_lines, line, make_run
from watching import Watch, watching

from fedpeft.runs.folder import RunFolder

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long
PAINT, UPDATE = 2000.0, 100.0  # milliseconds of processor time
_PATIENCE = 300.0  # seconds, on a machine of any speed

# After the first paint, with the data, and after the view was built.
_PAINTED = """
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  const [start] = performance.getEntriesByName("start");
  return Boolean(paint && start);"""
# The layout that an update causes is part of the update.
_UPDATE = """
  performance.clearMeasures("update");
  window.next = new Promise((done) => new PerformanceObserver((list) => {
    if (!list.getEntriesByName("update").length) return;
    document.body.getBoundingClientRect();
    done();
  }).observe({ type: "measure" }));"""


def work(browser: Chrome) -> float:
    """Return the milliseconds of processor time of the main thread since the counting began."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(1000 * metric["value"] for metric in metrics if metric["name"] == "ThreadTime")


def until(browser: Chrome, script: str) -> None:
    """Wait until a script returns a true value."""
    end = time.monotonic() + _PATIENCE
    while not browser.execute_script(script):
        assert time.monotonic() < end, script
        time.sleep(0.05)


def paint(browser: Chrome, watch: Watch) -> float:
    """Return the processor time of page and server until the first paint, best of three."""
    times = []
    for _ in range(3):
        browser.execute_cdp_cmd("Performance.disable", {})
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        before = work(browser), watch.seconds()
        browser.get(watch.address)
        until(browser, _PAINTED)
        counted = work(browser)  # of a new page it begins at 0
        page = counted - before[0] if counted > before[0] else counted
        times.append(page + 1000 * (watch.seconds() - before[1]))
    return min(times)


def update(browser: Chrome, run: Path, number: int) -> float:
    """Add a round to a run; return the processor time that the page works on it."""
    browser.set_script_timeout(_PATIENCE)
    browser.execute_script(_UPDATE)
    before = work(browser)
    add_lines(run, line(number))
    browser.execute_async_script("window.next.then(arguments[0])")
    return work(browser) - before


def report(what: str, value: float) -> None:
    print(f"{what}: {value:.1f}")


def test_ten_thousand_rounds(browser: Chrome, tmp_path: Path) -> None:
    set_screen(browser, 1280, "light")
    run = make_run(tmp_path / "long", 20_000, 10_000)
    with RunFolder(run).locked(), watching(run) as watch:
        first = paint(browser, watch)
        updates = []
        for number in range(10_001, 10_006):
            updates.append(update(browser, run, number))
        text = browser.execute_script("return document.querySelector('.state').textContent")
        assert "10,005 of 20,000 rounds" in text
    report("first paint of 10,000 rounds, ms", first)
    report("update of 10,000 rounds, ms", min(updates))
    assert first < PAINT and min(updates) < UPDATE


def test_a_thousand_runs(browser: Chrome, tmp_path: Path) -> None:
    set_screen(browser, 1280, "light")
    for number in range(1000):
        make_run(tmp_path / f"run-{number}", 20, 20 if number % 20 else 3)
    with watching(tmp_path) as watch:
        first = paint(browser, watch)
        until(browser, "return document.querySelectorAll('tbody tr[data-state]').length === 1000")
        updates = []
        for number in (4, 5, 6):
            updates.append(update(browser, tmp_path / "run-20", number))
        before, start = watch.seconds(), time.monotonic()
        time.sleep(10)
        share = (watch.seconds() - before) / (time.monotonic() - start)
    report("first paint of 1,000 runs, ms", first)
    report("update of 1,000 runs, ms", min(updates))
    report("server's share of a core, list of 1,000 runs, %", 100 * share)
    assert first < PAINT and min(updates) < UPDATE


def test_watching_a_run_costs_less_than_a_hundredth_of_a_core(
    browser: Chrome, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", 100, 50)
    with RunFolder(run).locked(), watching(run) as watch:
        browser.get(watch.address)
        time.sleep(2)
        before, start = watch.seconds(), time.monotonic()
        time.sleep(15)
        share = (watch.seconds() - before) / (time.monotonic() - start)
    report("server's share of a core, %", 100 * share)
    assert share < 0.01
