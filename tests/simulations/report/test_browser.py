"""The page, opened and clicked in headless Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simulations.report.page import write_report

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless Chromium that notes its console and its requests."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("chromium and chromedriver are not installed; .ci/run installs them")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for argument in (*ARGUMENTS, "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(programs[1])))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser: Chrome, finished_study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report."""
    path = shutil.copytree(finished_study, tmp_path_factory.mktemp("browser") / "study")
    return write_report(path)[0].as_uri()


@pytest.fixture(autouse=True)
def _opened(browser: Chrome, page: str) -> None:
    browser.get(page)


def test_it_opens_without_errors_and_without_a_network(browser: Chrome, page: str) -> None:
    assert browser.title == "Small <b>study</b>"  # no script of a label has changed it
    assert not browser.get_log("browser")
    events = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    asked = {
        each["params"]["request"]["url"]
        for each in events
        if each["method"] == "Network.requestWillBeSent"
    }
    assert page in asked
    assert all(each == page or each.startswith("data:") for each in asked)


def shown(browser: Chrome, series: int) -> dict[str, bool]:
    """Return figure -> whether anything of a series can be seen in it, where it has the series."""
    script = """
      const found = {};
      for (const part of document.querySelectorAll(`[data-series="${arguments[0]}"]`)) {
        const figure = part.closest("figure").id;
        found[figure] ||= getComputedStyle(part).display !== "none";
      }
      return found;"""
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
      const at = [...table.tHead.rows[0].cells].findIndex(each => each.innerText === arguments[0]);
      return [...table.tBodies[0].rows].map(row => row.cells[at].innerText);"""
    return list(browser.execute_script(script, name))


def test_a_heading_sorts_by_its_numbers(browser: Chrome) -> None:
    heading = next(
        each
        for each in browser.find_elements("css selector", "#results ~ .wide th button")
        if each.text == "P"
    )
    before = [int(each.replace(",", "")) for each in column(browser, "P")]
    assert before != sorted(before) and max(before) > 99  # as texts they would be in another order
    for order, reverse in (("ascending", False), ("descending", True)):
        browser.execute_script("arguments[0].click()", heading)
        after = [int(each.replace(",", "")) for each in column(browser, "P")]
        assert after == sorted(before, reverse=reverse)
        assert heading.find_element("xpath", "..").get_attribute("aria-sort") == order


def test_what_has_no_number_comes_last(browser: Chrome) -> None:
    script = """
      const table = document.querySelector("#targets ~ .wide table");
      table.querySelectorAll("th button")[4].click();
      return [...table.tBodies[0].rows].map(row => row.cells[4].innerText);"""
    for _ in range(2):
        found = list(browser.execute_script(script))
        assert found[:2].count("–") == 0 and found[2:] == ["–", "–"]


def test_a_point_says_what_it_is(browser: Chrome) -> None:
    from selenium.webdriver import ActionChains

    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    mark = browser.find_element("css selector", "#score-bytes-feeling [data-series='1'] [data-tip]")
    browser.execute_async_script(  # and wait for the event of scrolling, which hides the text
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
