"""Ten thousand rounds and a thousand runs: the page stays quick, and watching costs little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import set_screen
from made import add_lines, line, make_run
from watching import watching

from server.runfolder import RunFolder

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long
PAINT, UPDATE = 2000.0, 100.0  # milliseconds

# From the message to the end of the layout that it causes.
_UPDATE = """
  window.next = new Promise((done) => {
    setTimeout(() => done(null), 15000);
    new PerformanceObserver((list) => {
      const [entry] = list.getEntriesByName("update");
      if (!entry) return;
      const begin = performance.now();
      document.body.getBoundingClientRect();
      done(entry.duration + performance.now() - begin);
    }).observe({ type: "measure" });
  });"""
# With the data: after the first paint, and after the view was built.
_PAINT = """
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  const [start] = performance.getEntriesByName("start");
  return paint && start ? Math.max(paint.startTime, start.startTime + start.duration) : null;"""


def paint(browser: Chrome, address: str) -> float:
    """Return the milliseconds from the request of a page to its first paint."""
    browser.get(address)
    end = time.monotonic() + 10
    while not (found := browser.execute_script(_PAINT)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return float(found)


def update(browser: Chrome, run: Path, number: int) -> float:
    """Add a round to a run; return the milliseconds that the page works on it."""
    browser.execute_script(_UPDATE)
    add_lines(run, line(number))
    return float(browser.execute_async_script("window.next.then(arguments[0])"))


def report(what: str, value: float) -> None:
    print(f"{what}: {value:.1f}")


def test_ten_thousand_rounds(browser: Chrome, tmp_path: Path) -> None:
    set_screen(browser, 1280, "light")
    run = make_run(tmp_path / "long", 20_000, 10_000)
    browser.set_script_timeout(20)
    with RunFolder(run).locked(), watching(run) as watch:
        first = [paint(browser, watch.address) for _ in range(3)]
        updates = []
        for number in range(10_001, 10_006):
            updates.append(update(browser, run, number))
        text = browser.execute_script("return document.querySelector('.state').textContent")
        assert "10,005 of 20,000 rounds" in text
    report("first paint of 10,000 rounds, ms", min(first))
    report("update of 10,000 rounds, ms", min(updates))
    assert min(first) < PAINT and min(updates) < UPDATE


def test_a_thousand_runs(browser: Chrome, tmp_path: Path) -> None:
    set_screen(browser, 1280, "light")
    for number in range(1000):
        make_run(tmp_path / f"run-{number}", 20, 20 if number % 20 else 3)
    browser.set_script_timeout(30)
    with watching(tmp_path) as watch:
        first = [paint(browser, watch.address) for _ in range(3)]
        rows = "return document.querySelectorAll('tbody tr[data-state]').length"
        end = time.monotonic() + 20
        while browser.execute_script(rows) < 1000:
            assert time.monotonic() < end
            time.sleep(0.1)
        updates = []
        for number in (4, 5, 6):
            updates.append(update(browser, tmp_path / "run-20", number))
        before, start = watch.seconds(), time.monotonic()
        time.sleep(10)
        share = (watch.seconds() - before) / (time.monotonic() - start)
    report("first paint of 1,000 runs, ms", min(first))
    report("update of 1,000 runs, ms", min(updates))
    report("server's share of a core, list of 1,000 runs, %", 100 * share)
    assert min(first) < PAINT and min(updates) < UPDATE


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
