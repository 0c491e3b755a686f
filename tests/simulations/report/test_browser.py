"""The page in headless Chromium."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import serious_violations, set_screen
from made import make_run

from simulations.report.page import write_report
from simulations.report.runs import write_runs_report

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def page(browser: Chrome, finished_study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report."""
    path = shutil.copytree(finished_study, tmp_path_factory.mktemp("browser") / "study")
    return write_report(path)[0].as_uri()


@pytest.fixture(autouse=True)
def _opened(browser: Chrome, page: str) -> None:
    browser.get(page)


def test_the_page_opens_without_errors_and_requests(browser: Chrome, page: str) -> None:
    assert browser.title == "Small <b>study</b>"  # no script in a label changed it
    assert not browser.get_log("browser")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert page in urls
    assert all(url == page or url.startswith("data:") for url in urls)


def shown(browser: Chrome, series: int) -> dict[str, bool]:
    """Return figure -> whether the series is visible in it, for all figures with the series."""
    script = """
      const visible = {};
      for (const part of document.querySelectorAll(`[data-series="${arguments[0]}"]`)) {
        const figure = part.closest("figure").id;
        visible[figure] ||= getComputedStyle(part).display !== "none";
      }
      return visible;"""
    return dict(browser.execute_script(script, series))


@pytest.mark.parametrize("how", ["mouse", "keyboard"])
def test_the_legend_hides_a_series_in_every_figure(browser: Chrome, how: str) -> None:
    button = browser.find_element("css selector", '[data-legend="1"]')
    toggle = button.click if how == "mouse" else lambda: button.send_keys(" ")
    assert len(shown(browser, 1)) == 6 and all(shown(browser, 1).values())
    toggle()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(shown(browser, 1).values())
    assert all(shown(browser, 0).values())
    toggle()
    assert button.get_attribute("aria-pressed") == "true"
    assert all(shown(browser, 1).values())


def column(browser: Chrome, name: str) -> list[str]:
    """Return the texts of a column of the table of all results, in the order shown."""
    script = """
      const table = document.querySelector("#results ~ .wide table");
      const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.innerText === arguments[0]);
      return [...table.tBodies[0].rows].map(row => row.cells[at].innerText);"""
    return list(browser.execute_script(script, name))


def test_a_heading_sorts_by_its_numbers(browser: Chrome) -> None:
    heading = next(
        button
        for button in browser.find_elements("css selector", "#results ~ .wide th button")
        if button.text == "P"
    )
    before = [int(text.replace(",", "")) for text in column(browser, "P")]
    assert before != sorted(before) and max(before) > 99  # sorted as text, the order would differ
    for order, reverse in (("ascending", False), ("descending", True)):
        browser.execute_script("arguments[0].click()", heading)
        after = [int(text.replace(",", "")) for text in column(browser, "P")]
        assert after == sorted(before, reverse=reverse)
        assert heading.find_element("xpath", "..").get_attribute("aria-sort") == order


def test_cells_without_a_number_sort_last(browser: Chrome) -> None:
    script = """
      const table = document.querySelector("#targets ~ .wide table");
      table.querySelectorAll("th button")[4].click();
      return [...table.tBodies[0].rows].map(row => row.cells[4].innerText);"""
    for _ in range(2):
        texts = list(browser.execute_script(script))
        assert texts[:2].count("–") == 0 and texts[2:] == ["–", "–"]


def test_a_point_shows_a_tooltip(browser: Chrome) -> None:
    from selenium.webdriver import ActionChains

    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    mark = browser.find_element("css selector", "#score-bytes-feeling [data-series='1'] [data-tip]")
    browser.execute_async_script(  # and wait for the scroll event, which hides the tooltip
        """const [mark, done] = arguments;
        mark.scrollIntoView({block: "center"});
        requestAnimationFrame(() => requestAnimationFrame(done));""",
        mark,
    )
    ActionChains(browser).move_to_element(mark).perform()
    assert tip.is_displayed()
    assert tip.text == mark.get_attribute("data-tip")
    assert "<script>" in tip.text and "accuracy" in tip.text and "payload" in tip.text
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert not tip.is_displayed()


def test_a_phone_shows_the_page_without_scrolling_sideways(browser: Chrome) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_follow_the_colours_of_the_page(browser: Chrome, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    script = """
      const text = document.querySelector("figure svg text");
      return [getComputedStyle(text).fill, getComputedStyle(document.body).color];"""
    of_figure, of_page = browser.execute_script(script)
    assert (
        of_figure == of_page == {"light": "rgb(26, 28, 33)", "dark": "rgb(232, 234, 237)"}[scheme]
    )


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.gate), "dark"])
def test_the_page_is_accessible(browser: Chrome, scheme: str) -> None:
    set_screen(browser, 1280, scheme)
    assert serious_violations(browser) == []


def test_the_report_of_a_run_opens_from_its_file(browser: Chrome, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    pages = [
        write_runs_report(runs[:1])[0].as_uri(),
        write_runs_report(runs, tmp_path / "both.html")[0].as_uri(),
    ]
    for page, series in zip(pages, (1, 2), strict=True):
        browser.get_log("performance")
        browser.get(page)
        lines = browser.find_elements("css selector", "#score .line")
        assert len(lines) == series
        assert not browser.get_log("browser")
        logged = browser.get_log("performance")
        requests = [json.loads(entry["message"])["message"] for entry in logged]
        urls = [
            event["params"]["request"]["url"]
            for event in requests
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert {url for url in urls if not url.startswith("data:")} == {page}


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.gate), "dark"])
def test_the_report_of_runs_is_accessible_and_fits_a_phone(
    browser: Chrome, tmp_path: Path, scheme: str
) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    for page in (write_runs_report(runs[:1]), write_runs_report(runs, tmp_path / "both.html")):
        set_screen(browser, 1280, scheme)
        browser.get(page[0].as_uri())
        assert browser.find_elements("css selector", "#score .line")
        assert serious_violations(browser) == []
        set_screen(browser, 400, scheme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    set_screen(browser, 1280, "light")


def test_a_printed_report_is_light_and_has_no_buttons(browser: Chrome, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    media = {"media": "print", "features": dark}
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get(write_runs_report(runs, tmp_path / "both.html")[0].as_uri())
        paper = "return getComputedStyle(document.body).backgroundColor"
        assert browser.execute_script(paper) == "rgb(254, 254, 254)"
        for part in (".legend", ".axis-choice"):
            assert not browser.find_element("css selector", part).is_displayed()
        assert browser.find_element("css selector", "#score .line").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
