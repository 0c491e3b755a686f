"""The page of a node in headless Chromium, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from browsing import chromium, serious_violations, set_screen
from ledgers import charged, opened
from workers import handshake, node_context, state_folder, task_vector

from clients import relay
from clients.folder import NodeFolder
from fedpeft.cli import main
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism
from fedpeft.runtime import runtime_of

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long
_MAIN = "import sys; from fedpeft.cli import main; main(sys.argv[1:])"
ROUND = Mechanism(2.0, 0.1, 5)
SETTINGS = {"max_epsilon": 4.0, "examples": 3000, "key": "/keys/north"}


@contextmanager
def watching(state: Path) -> Iterator[str]:
    """Run `fedpeft node watch` at a free port; yield the page's address."""
    options = ["node", "watch", "--port", "0", "--state", str(state)]
    command = [sys.executable, "-c", _MAIN, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def send(state: Path, experiment: Experiment, number: int) -> None:
    """Let the node answer a train message of a round, without a worker."""
    start = runtime_of(experiment).parameters.initial(0)
    relay.app(task_vector("train", experiment, start, number), node_context(state))


@pytest.fixture
def state(tmp_path: Path, quick: Callable[..., Experiment]) -> Path:
    """A node that is down, has trained for one round, and has spent some of its limit."""
    path, experiment = state_folder(tmp_path / "state"), quick()
    context = node_context(path)
    relay.app(handshake(experiment), context)
    send(path, experiment, 1)
    state_folder(path, **SETTINGS)
    for number in (1, 2):
        charged(opened(NodeFolder(path).ledger), ROUND, round_number=number)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


def until(browser: Chrome, script: str, seconds: float = 240.0) -> Any:
    """Return the first true value of a script."""
    end = time.monotonic() + seconds
    while not (value := browser.execute_script(f"return {script}")):
        assert time.monotonic() < end, f"{script}: {value}"
        time.sleep(0.05)
    return value


def test_the_owner_sees_what_left_and_what_is_left(
    browser: Chrome, state: Path, quick: Callable[..., Experiment]
) -> None:
    with watching(state) as address:
        browser.get(address)
        assert browser.find_element("tag name", "h1").text == "Node north"
        text = until(browser, "document.querySelector('.budget')?.textContent")
        assert re.search(
            r"Spent epsilon \d\.\d\d of 4 \(\d+ %\); \d\.\d\d is left, at delta 1.5e-4\.", text
        )
        assert re.search(r"\(round 2\) would make it \d\.\d\d; \d+ such rounds fit\.", text)
        bar = browser.find_element("css selector", "progress.spent")
        assert 0 < float(str(bar.get_attribute("value"))) < 1
        main = "document.querySelector('main').textContent"
        shown = browser.execute_script(f"return {main}")
        assert "handshake" in shown and "examples = 20" in shown
        assert "vector 328 B, loss = 0." in shown and "synthetic/sentiment, slash" in shown
        assert "the node does not run" in shown
        assert "sums of featuresrefused" in shown  # it shows the number of examples only roughly
        browser.execute_script("window.here = true")
        state_folder(state)  # without the limit, which this experiment's privacy does not meet
        send(state, quick(), 2)
        until(browser, "document.querySelectorAll('#messages ~ div tbody tr').length === 3")
        sums = quick("head.start=sums")
        relay.app(handshake(sums), node_context(state))
        send(state, sums, 0)
        until(browser, "document.querySelectorAll('#messages ~ div tbody tr').length === 5")
        first = browser.find_element("css selector", "#messages ~ div tbody tr").text
        assert " sums 0 " in first and "vector" in first
        shown = browser.execute_script(f"return {main}")
        assert "rounds trained2" in shown and "sums of featuressent" in shown
        named = node_context(state)
        named.run_config["out"] = "first"
        relay.app(handshake(sums), named)
        until(browser, "document.querySelectorAll('#messages ~ div tbody tr').length === 6")
        until(browser, "document.querySelector('#runs ~ div tbody td').textContent === 'first'")
        first = browser.find_element("css selector", "#messages ~ div tbody tr").text
        assert first.endswith(" first")
        assert browser.execute_script("return window.here")


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.gate), "dark"])
def test_the_page_is_accessible_and_fits_a_phone(browser: Chrome, state: Path, scheme: str) -> None:
    with watching(state) as address:
        set_screen(browser, 1280, scheme)
        browser.get("about:blank")  # not the page of an earlier test, whose server is gone
        browser.get_log("browser")
        browser.get(address)
        until(browser, "document.querySelector('.budget')")
        assert serious_violations(browser) == []
        set_screen(browser, 400, scheme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        assert not browser.get_log("browser")
    set_screen(browser, 1280, "light")


def test_a_token_is_needed_and_nothing_can_be_changed(state: Path) -> None:
    with watching(state) as address:
        base, _, token = address.partition("?token=")
        assert base.startswith("http://127.0.0.1:") and len(token) >= 32
        for path in (base, f"{base}?token=wrong", f"{base}events?view=node"):
            answer = httpx.get(path, timeout=240)
            assert answer.status_code == 401 and "`fedpeft node watch`" in answer.text
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            assert httpx.get(address, headers=headers, timeout=240).status_code == 403
        with httpx.Client(follow_redirects=True, timeout=240) as client:
            assert client.get(address).status_code == 200
            assert client.get(f"{base}server").status_code == 404
            assert client.post(f"{base}act/stop?name=x").status_code == 405


def test_the_page_writes_nothing(state: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    with watching(state) as address, httpx.Client(follow_redirects=True, timeout=240) as client:
        assert "What left this site" in client.get(address).text
        time.sleep(3)  # while the privacy is computed
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_a_folder_that_is_no_nodes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["node", "watch", "--state", str(tmp_path)])
    assert stop.value.code == 2 and "not a node's folder" in capsys.readouterr().err
