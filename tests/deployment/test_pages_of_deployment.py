"""The pages of a real server and of its nodes, in headless Chromium."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import chromium, serious_violations, set_screen

from clients.folder import NodeFolder
from clients.traffic import recorded
from fedpeft.experiment.config import Experiment
from server.remote.connection import find_connection
from server.remote.page import page_address
from simulations.loopback import PATIENCE, Deployment, deployment, run, until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.long
MARK = "zebrafinch"  # a word of the nodes' texts, and part of a wrong label
SETTINGS = [
    *("backbone=tiny", "method.d=16", "engine.threads=1", "output.plots=false"),
    *("task.name=custom", "task.labels=['bad', 'good']", "federation.evaluation=clients"),
    *("federation.clients=2", "federation.min_success=1", "federation.timeout=240"),
    *("local.batch_size=4", "federation.node_wait=240"),
]
LONG = [*SETTINGS, "federation.rounds=400"]


def write_data(folder: Path, labels: tuple[str, str]) -> Path:
    folder.mkdir()
    rows = [f"{MARK} number {k} is {labels[k % 2]}\t{labels[k % 2]}" for k in range(24)]
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def start_node(deployed: Deployment, name: str) -> None:
    data, labels = str(deployed.folder / f"{name}-data"), "bad,good"
    deployed.start_node(name, "--data", data, "--labels", labels, "--backbone", "tiny")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start a server and two nodes."""
    with deployment(tmp_path_factory.mktemp("page")) as made:
        for name in ("north", "south"):
            write_data(made.folder / f"{name}-data", ("bad", "good"))
            made.add_node(name)
            start_node(made, name)
        yield made


@pytest.fixture(scope="module")
def short(deployed: Deployment) -> str:
    """Run two rounds; return the run's name."""
    deployed.run("short", [*SETTINGS, "federation.rounds=2"])
    return "short"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser: Chrome, deployed: Deployment) -> Chrome:
    """The browser at the server's page."""
    set_screen(browser, 1280, "light")
    browser.get(page_address(find_connection(str(deployed.state))))
    shown(browser, "document.getElementById('status').textContent === 'live'")
    return browser


def shown(browser: Chrome, script: str) -> Any:
    """Return the first true value of a script."""
    end = time.monotonic() + PATIENCE
    while not (value := browser.execute_script(f"return {script}")):
        assert time.monotonic() < end, f"{script}: {value}"
        time.sleep(0.1)
    return value


def row(table: str, name: str) -> str:
    """Return a script for the text of the row whose first cell is ``name``."""
    rows = f"[...document.querySelectorAll('#{table} ~ div tbody tr')]"
    return (
        f"({rows}.find(row => row.cells[0].textContent === '{name}')?.innerText ?? '')"
        f".replaceAll('\\t', ' ')"
    )


def click(page: Chrome, label: str) -> None:
    shown(page, f"document.querySelector('[aria-label=\"{label}\"]')")
    page.find_element("css selector", f"[aria-label='{label}']").click()


def test_a_node_that_leaves_and_comes_back_appears_so(page: Chrome, deployed: Deployment) -> None:
    north, south = row("nodes", "north"), row("nodes", "south")
    shown(page, f"{north}.includes('online') && {south}.includes('online')")
    page.execute_script("window.here = true")
    deployed.kill_tree("south")
    shown(page, f"{south}.includes('away')")
    assert "online" in page.execute_script(f"return {north}")
    start_node(deployed, "south")
    shown(page, f"{south}.includes('online')")
    assert page.execute_script("return window.here")


def test_a_run_is_stopped_and_resumed_from_the_page(page: Chrome, deployed: Deployment) -> None:
    submitted = deployed.submit("long", LONG)
    long = row("runs", "long")
    shown(page, f"{long}.includes('running') && / [1-9]\\d* \\/ 400/.test({long})")
    click(page, "Stop run long")
    page.switch_to.alert.accept()
    note = "document.getElementById('note').textContent"
    assert "stopped run 'long'" in shown(page, f"{note}.startsWith('stopped') && {note}")
    shown(page, f"{long}.includes('stopped')")
    assert submitted.wait(PATIENCE) == 1
    rounds = len(deployed.rounds("long"))
    click(page, "Resume run long")
    assert "resumed run 'long'" in shown(page, f"{note}.startsWith('resumed') && {note}")
    shown(page, f"{long}.includes('running')")
    until(lambda: len(deployed.rounds("long")) > rounds + 1, "two more rounds")
    numbers = [line["round"] for line in deployed.rounds("long")]
    assert numbers == [*range(1, len(numbers) + 1)]
    log = deployed.logged("server", "through the page: ")
    assert [line.split("'")[0] for line in log] == [
        "through the page: stopped run ",
        "through the page: resumed run ",
    ]
    run("run", "--on", str(deployed.state), "--name", "long", "--stop")
    shown(page, f"{long}.includes('stopped')")


def test_a_run_is_started_from_the_page(page: Chrome, deployed: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    settings = [*SETTINGS, "federation.rounds=2", "seed=7"]
    file.write_text(Experiment.load("", settings).to_toml(derived=False))
    page.execute_script("window.here = true")
    page.find_element("css selector", "details:has(#start) summary").click()
    page.find_element("id", "start-file").send_keys(str(file))
    assert shown(page, "document.getElementById('start-name').value") == "given"
    text = page.find_element("id", "start-text")
    shown(page, "document.getElementById('start-text').value.includes('seed = 7')")
    text.send_keys("\nseeed = 1")
    page.find_element("id", "start").click()
    note = "document.getElementById('note').textContent"
    said = shown(page, f"{note}.startsWith('not done') && {note}")
    assert "unknown key 'output.seeed'" in said
    page.find_element("id", "start-file").send_keys(str(file))  # the text of the file again
    shown(page, "!document.getElementById('start-text').value.includes('seeed')")
    page.find_element("id", "start").click()
    assert "started run 'given'" in shown(page, f"{note}.startsWith('started') && {note}")
    given = row("runs", "given")
    shown(page, f"{given}.includes('finished') && {given}.includes('2 / 2')")
    assert page.execute_script("return window.here")
    assert Experiment.read(deployed.state / "runs" / "given" / "experiment.toml") == (
        Experiment.load("", settings)
    )
    out = tmp_path / "copied"
    run("run", "--on", str(deployed.state), "--name", "given", "--resume", "--out", str(out))
    assert json.loads((out / "result.json").read_text())["rounds"] == 2


def test_the_numbers_of_nodes_are_the_servers(
    page: Chrome, deployed: Deployment, short: str
) -> None:
    text = shown(page, f"{row('nodes', 'north')}.includes('short') && {row('nodes', 'north')}")
    status = json.loads(run("server", "status", "--state", str(deployed.state), "--json"))
    north = next(node for node in status["nodes"] if node["name"] == "north")
    assert f"{north['bytes']['up'] / 1000:.1f} KB" in text and str(north["node_id"]) in text
    assert re.search(r"\d+\.\d+ MB|\d+\.\d KB", text)
    page.find_element("link text", "short").click()
    shown(page, "location.pathname === '/watch/runs'")
    assert "2 of 2 rounds" in shown(page, "document.querySelector('.state').textContent")
    page.find_element("link text", "← The server").click()
    shown(page, "location.pathname === '/watch/'")


def test_bytes_at_a_node_are_those_that_the_server_counted(
    deployed: Deployment, short: str
) -> None:
    run_id = json.loads((deployed.state / "runs" / short / "run.json").read_text())["run"]
    lines = [*recorded(NodeFolder(deployed.node("north")))]
    for number in (1, 2):
        [sent] = [
            line
            for line in deployed.sent(short)
            if (line["kind"], line["round"], line["client"]) == ("train", number, 0)
        ]
        [kept] = [
            line
            for line in lines
            if (line["kind"], line["round"]) == ("train", number) and line["run"] == str(run_id)
        ]
        assert kept["payload"] == sent["up"]["payload"]
        assert kept["down"] == sent["down"]["message"]
        # Flower adds the reply's id, 64 letters, when it sends it.
        assert 64 <= sent["up"]["message"] - kept["up"] <= 70


def test_refused_nodes_are_shown_and_no_text_of_clients(page: Chrome, deployed: Deployment) -> None:
    table, start = deployed.folder / "south-data" / "train.tsv", len(deployed.log("south"))
    table.write_text(table.read_text() + f"another {MARK}\t{MARK}-label\n")
    deployed.run("refused", [*SETTINGS, "federation.rounds=1", "seed=1"])
    deployed.wait_for("south", MARK, start)  # its own log names the wrong cell
    labels = [*SETTINGS, "federation.rounds=1", "task.labels=['good', 'bad']"]
    deployed.submit("labels", labels)
    shown(page, "document.querySelector('#absent ~ div').textContent.includes('labels')")
    run("run", "--on", str(deployed.state), "--name", "labels", "--stop")
    deployed.finish("labels", expect=1)
    for name in ("", "runs?name=refused", "runs?name=labels"):
        page.get(f"{page.current_url.split('/watch/')[0]}/watch/{name}")
        shown(page, "document.querySelectorAll('h2').length")
        assert MARK not in page.page_source
    assert find_connection(str(deployed.state)).token not in page.page_source


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit_a_phone(
    page: Chrome, deployed: Deployment, scheme: str
) -> None:
    page.get_log("browser")
    base = page.current_url.partition("?")[0]
    name = next(path.name for path in (deployed.state / "runs").iterdir())
    for address, ready in (
        (base, "document.querySelectorAll('#nodes ~ div tbody tr').length"),
        (f"{base}runs?name={name}", "document.querySelectorAll('.facts div').length"),
    ):
        set_screen(page, 1280, scheme)
        page.get(address)
        shown(page, ready)
        page.execute_script("document.querySelectorAll('details').forEach((it) => it.open = true)")
        assert serious_violations(page) == []
        set_screen(page, 400, scheme)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
    assert not [line for line in page.get_log("browser") if line["level"] == "SEVERE"]


def test_a_script_of_another_page_cannot_act(browser: Chrome, deployed: Deployment) -> None:
    """The browser holds the cookie, and the foreign page knows the address of the buttons."""
    connection = find_connection(str(deployed.state))
    before = len(deployed.logged("server", "through the page: "))
    browser.get(page_address(connection))
    act = f"https://{connection.operations}/watch/act"
    address = f"{act}/start?name=foreign"
    browser.get("data:text/html,<title>foreign</title>")
    script = """
      const [address, headers, done] = arguments;
      const body = 'backbone = "tiny"';
      fetch(address, {method: "POST", mode: "no-cors", credentials: "include", headers, body})
        .then((answer) => done(answer.type), (error) => done(String(error)));"""
    for headers in ({}, {"X-Fedpeft-Act": "x"}):
        for target in (f"{act}/resume?name=long", address):
            browser.execute_async_script(script, target, headers)
    form = """const form = document.createElement("form");
      [form.method, form.action] = ["post", arguments[0]];
      document.body.append(form); form.submit();"""
    browser.execute_script(form, address)
    answers = "/another site|open the address/.test(document.body.textContent)"
    shown(browser, answers)
    assert len(deployed.logged("server", "through the page: ")) == before
    assert not (deployed.state / "runs" / "foreign").exists()
