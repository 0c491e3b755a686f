"""The live page in headless Chromium."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import serious_violations, set_screen
from made import add_lines, line, make_run
from watching import Watch, watching

from server.runfolder import RunFolder
from simulations.study.folder import StudyFolder

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long
EVIL = "<img src=x onerror=\"document.title='broken'\"><b>no</b>"
STUDY = """
title = "Study"
[base]
backbone = "tiny"
method.d = 16
federation.rounds = 5
federation.clients = 6
[axes]
seed = [0, 1]
method = [{ label = "SLaSh", method.d = 16 }, { label = "smaller", method.d = 8 }]
"""
PAGES = {
    "list": "",
    "run": "runs?name=live",
    "compare": "runs?name=live&name=slow",
    "study": "study?name=study",
}


def until(browser: Chrome, script: str, *arguments: Any, seconds: float = 120.0) -> Any:
    """Return the first true value of a script."""
    end = time.monotonic() + seconds
    while not (value := browser.execute_script(f"return {script}", *arguments)):
        assert time.monotonic() < end, f"{script}: {value}"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live run with failures, a finished one, and a study with a finished cell."""
    path = tmp_path_factory.mktemp("pages")
    failed = [{"client": 1, "reason": EVIL}]
    make_run(path / "live", 50, 10)
    add_lines(path / "live", line(11, failed=failed, clients=5, late=[3]))
    partition = {"digest": "d", "clients": [[0], [1, 2]], "labels": ["no", EVIL]}
    partition["counts"] = [[0, 1], [1, 1]]
    (path / "live" / "partition.json").write_text(json.dumps(partition))
    make_run(path / "slow", 20, more=("local.lr=0.001",))
    study = StudyFolder.create(path / "study", STUDY, resume=False)
    cells = study.plan().cells({})
    make_run(study.run_of(cells[0]).path)
    study.note_failure(cells[1], EVIL, "")
    return path


@pytest.fixture(scope="module")
def watch(folder: Path) -> Iterator[Watch]:
    """The page of the folder, while a process works on the live run."""
    with RunFolder(folder / "live").locked(), watching(folder) as started:
        yield started


@pytest.fixture(autouse=True)
def _screen(browser: Chrome) -> None:
    set_screen(browser, 1280, "light")


def test_rounds_appear_without_a_reload(browser: Chrome, watch: Watch, folder: Path) -> None:
    browser.get(f"{watch.address}runs?name=live")
    until(browser, "document.getElementById('status').textContent === 'live'")
    browser.execute_script("window.here = true")
    text = "document.querySelector('.state').textContent"
    assert "11 of 50 rounds" in until(browser, text) and "running" in until(browser, text)
    height = browser.execute_script("return document.querySelector('#settings').offsetTop")
    add_lines(folder / "live", line(12, score=0.9876))
    until(browser, f"{text}.includes('12 of 50 rounds')")
    assert "0.9876" in browser.execute_script("return document.querySelector('.facts').textContent")
    label = browser.execute_script("return document.querySelector('#score svg').ariaLabel")
    assert label.endswith("0.9876 at round 12")
    assert browser.execute_script("return window.here")
    assert height == browser.execute_script("return document.querySelector('#settings').offsetTop")


def test_two_runs_are_chosen_in_the_list_and_compared(browser: Chrome, watch: Watch) -> None:
    browser.get(watch.address)
    button = browser.find_element("css selector", "#all ~ div .action")
    assert not button.is_enabled()
    for name in ("live", "slow"):
        browser.find_element("css selector", f"[aria-label='compare {name}']").click()
    button.click()
    until(browser, "location.pathname === '/runs'")
    assert browser.find_element("tag name", "h1").text == "2 runs compared"
    for figure in ("score", "loss", "traffic", "clients"):
        script = (
            f"[...document.querySelectorAll('#{figure} g')].map(({{dataset}}) => dataset.series)"
        )
        assert {*browser.execute_script(f"return {script}")} == {"0", "1"}
    rows = "[...document.querySelectorAll('#settings ~ .wide tbody tr')]"
    settings = browser.execute_script(f"return {rows}.map(row => row.innerText)")
    assert [row.split("\t") for row in settings] == [
        ["federation.rounds", "50", "20"],
        ["local.lr", "0.005", "0.001"],
    ]
    browser.find_element("css selector", "[value='bytes']").click()
    assert "messages of training, up + down" in browser.execute_script(
        "return document.querySelector('#score svg').ariaLabel"
    )


def test_cells_of_a_study_appear_as_they_finish(
    browser: Chrome, watch: Watch, folder: Path
) -> None:
    browser.get(f"{watch.address}study?name=study")
    assert "1 of 4 cells finished" in until(browser, "document.querySelector('main').textContent")
    study = StudyFolder(folder / "study")
    make_run(study.run_of(study.plan().cells({})[2]).path)
    until(browser, "document.querySelector('main').textContent.includes('2 of 4 cells finished')")
    marks = "document.querySelectorAll('#scores-0 .mark').length"
    assert until(browser, f"{marks} === 2")


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.gate), "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible_and_fit_a_phone(
    browser: Chrome, watch: Watch, name: str, scheme: str
) -> None:
    set_screen(browser, 1280, scheme)
    browser.get_log("browser")
    browser.get(watch.address + PAGES[name])
    until(browser, "document.querySelectorAll('h2').length")
    assert serious_violations(browser) == []
    set_screen(browser, 400, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    assert browser.title != "broken" and not browser.get_log("browser")


def test_a_damaged_line_is_named_and_the_rest_is_shown(
    browser: Chrome, watch: Watch, folder: Path
) -> None:
    run = make_run(folder / "damaged", 9, 4)
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "clie\n')
    add_lines(run, line(6))
    browser.get(f"{watch.address}runs?name=damaged")
    problem = until(browser, "document.querySelector('.problem')?.textContent")
    assert problem.startswith("rounds.jsonl line 5 is damaged and left out (")
    label = browser.execute_script("return document.querySelector('#score svg').ariaLabel")
    assert label.endswith("at round 6")
    assert serious_violations(browser) == []


def test_texts_of_nodes_stay_text(browser: Chrome, watch: Watch) -> None:
    browser.get(f"{watch.address}runs?name=live")
    until(browser, "document.querySelector('#failures')")
    assert EVIL in browser.execute_script("return document.querySelector('main').textContent")
    assert (
        browser.execute_script("return document.querySelectorAll('main img, main b').length") == 0
    )


def test_the_keyboard_reads_the_points_of_a_figure(browser: Chrome, watch: Watch) -> None:
    from selenium.webdriver import Keys

    browser.get(f"{watch.address}runs?name=slow")
    figure = browser.find_element("css selector", "#score svg")
    tip = browser.find_element("id", "tip")
    browser.execute_async_script(  # and wait for the scroll event, which hides the tooltip
        """const [figure, done] = arguments;
        figure.scrollIntoView({block: "center"});
        requestAnimationFrame(() => requestAnimationFrame(done));""",
        figure,
    )
    figure.send_keys(Keys.ARROW_LEFT)
    assert "round 20" in tip.text and "accuracy: 0." in tip.text
    figure.send_keys(Keys.ARROW_LEFT)
    assert "round 19" in tip.text
    figure.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def visible(browser: Chrome, script: str) -> bool:
    """Return whether an element lies within the box that scrolls its table."""
    return bool(
        browser.execute_script(
            f"""const cell = {script}, box = cell.closest(".wide").getBoundingClientRect();
            const {{left, right}} = cell.getBoundingClientRect();
            return left >= box.left && right <= box.right + 1;"""
        )
    )


def test_a_list_shows_what_it_has_on_each_screen(browser: Chrome, tmp_path: Path) -> None:
    own = ("task.name=custom", "task.train=/data/products.tsv")
    make_run(tmp_path / "a-run-with-a-long-name-20261129-120000", more=own)
    make_run(tmp_path / "second", 50, 10)
    row = "document.querySelector('#all ~ div tbody tr')"
    with watching(tmp_path) as served:
        browser.get(served.address)
        until(browser, "document.querySelectorAll('#all ~ div tbody tr').length === 2")
        assert "products.tsv" in browser.find_element("css selector", "#all ~ div tbody").text
        assert visible(browser, f"{row}.lastElementChild")
        head = browser.find_element("css selector", "#all ~ div thead").text
        assert "score" in head and "last change" in head and "epsilon" not in head
        for width in (390, 400):
            set_screen(browser, width, "light")
            assert visible(browser, f"{row}.cells[3]")  # the score
            assert browser.execute_script(f"return {row}.cells[3].textContent").startswith("0.")
        set_screen(browser, 1280, "light")
        private = ("privacy.unit=example", "privacy.noise_multiplier=1")
        make_run(tmp_path / "private", 5, 3, more=private)
        until(browser, "document.querySelectorAll('#all ~ div tbody tr').length === 3")
        until(browser, "document.querySelector('#all ~ div thead').innerText.includes('epsilon')")
        assert visible(browser, f"{row}.lastElementChild")


def test_failed_clients_have_a_figure_only_if_there_are_some(
    browser: Chrome, watch: Watch, tmp_path: Path
) -> None:
    browser.get(f"{watch.address}runs?name=live&name=slow")  # clients of the first failed
    assert browser.find_element("id", "clients").is_displayed()
    for name in ("one", "two"):
        make_run(tmp_path / name, 50, 10)
    with watching(tmp_path) as served:
        for names in ("name=one", "name=one&name=two"):
            browser.get(f"{served.address}runs?{names}")
            until(browser, "document.querySelector('#score .line')")
            assert not browser.find_element("id", "clients").is_displayed()
        failed = [{"client": 1, "reason": "it broke"}]
        add_lines(tmp_path / "one", line(11, failed=failed, clients=5))
        until(browser, "document.getElementById('clients').offsetHeight > 0")


def test_a_page_says_when_its_server_is_gone(browser: Chrome, folder: Path) -> None:
    with watching(folder / "slow") as alone:
        browser.get(alone.address)
        assert browser.find_element("tag name", "h1").text == "slow"
        until(browser, "document.getElementById('status').textContent === 'live'")
    until(browser, "document.getElementById('status').textContent.startsWith('not connected')")
    browser.get_log("browser")  # the failed connections


def test_two_watchers_show_one_folder(browser: Chrome, watch: Watch, folder: Path) -> None:
    with watching(folder) as other:
        browser.get(f"{other.address}runs?name=slow")
        assert browser.find_element("tag name", "h1").text == "slow"
    browser.get(f"{watch.address}runs?name=slow")
    assert browser.find_element("tag name", "h1").text == "slow"
    browser.get_log("browser")
