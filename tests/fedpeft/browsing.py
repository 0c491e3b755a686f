"""Headless Chromium, and axe-core, which checks whether a page is accessible."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_AXE = """
  const done = arguments[0];
  axe.run(document, {resultTypes: ["violations"]}).then(
    (results) => done(results.violations.map(({id, impact, nodes}) =>
      [impact, id, nodes.slice(0, 3).map((node) => node.html.slice(0, 200))])),
    (error) => done([["critical", String(error), []]]));"""


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A headless Chromium that logs its console and requests; skip the test if there is none."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("chromium is not installed: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for argument in (*_ARGUMENTS, "--window-size=1280,900"):
        options.add_argument(argument)
    options.accept_insecure_certs = True  # of an authority that a test has made
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(programs[1])))
    try:
        yield driver
    finally:
        driver.quit()


def set_screen(browser: Chrome, width: int, scheme: str) -> None:
    """Set the width of the screen in pixels, and "light" or "dark"."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def serious_violations(browser: Chrome) -> list[Any]:
    """Return axe-core's serious and critical violations on the open page.

    Two landmarks of one name count, too: readers move between them by their names.
    """
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.origin:
        pytest.skip("axe-core is not installed: see the Makefile")
    script = (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    browser.execute_script(script)
    found = browser.execute_async_script(_AXE)
    return [
        entry
        for entry in found
        if entry[0] in ("serious", "critical") or entry[1] == "landmark-unique"
    ]
