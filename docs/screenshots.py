"""Take the screenshots in docs/images, of real runs, a real server and a real node.

    PYTHONPATH=.:tests/fedpeft python docs/screenshots.py

takes some minutes and needs chromium and chromedriver. With ``--all FOLDER``, every page is saved
as a whole in FOLDER, light and dark, 1280 and 400 pixels wide, to be looked at after a change.
"""

from __future__ import annotations

import argparse
import base64
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from browsing import chromium, set_screen

from deployment.loopback import Deployment, command, deployment, run, until
from deployment.operator.connection import find_connection
from deployment.operator.page import page_address

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

IMAGES = Path(__file__).parent / "images"
FULL, PHONE = 1280, 400  # widths in pixels
CROPPED = 1000  # height of a picture in the documentation, at most
SMALL = [
    *("backbone=tiny", "engine.threads=1", "output.plots=false", "task.train_limit=600"),
    *("task.eval_limit=200", "federation.clients=6", "local.batch_size=8", "local.lr=0.02"),
]
PRIVATE = [
    *("method.d=16", "local.optimizer=sgd", "privacy.unit=example"),
    "privacy.noise_multiplier=1.2",
]
UNEVEN = [
    *("method.name=lora", "federation.rounds=300", "federation.clients=12"),
    *("federation.per_round=6", "partition.kind=dirichlet", "partition.alpha=0.3"),
    *("devices.step_seconds=0.5", "devices.spread=0.5", "devices.dropout=0.05"),
    *("federation.min_success=1", "federation.deadline=40"),
]
STUDY = """
title = "Which method?"
[base]
backbone = "tiny"
task.train_limit = 600
task.eval_limit = 200
federation.clients = 6
federation.rounds = 8
local.lr = 0.02
engine.threads = 1
[axes]
seed = [0, 1]
method = [
    { label = "SLaSh", method.name = "slash", method.d = 16 },
    { label = "LoRA", method.name = "lora" },
    { label = "BitFit", method.name = "bitfit" },
]
"""
EXPERIMENT = """seed = 1
backbone = "tiny"
[task]
name = "custom"
labels = ["bad", "good"]
[method]
name = "slash"
d = 16
[federation]
clients = 2
rounds = 20
evaluation = "clients"
[privacy]
unit = "example"
epsilon = 2.0
"""
DEPLOYED = [
    *("backbone=tiny", "engine.threads=1", "output.plots=false", "task.name=custom"),
    *("task.labels=['bad', 'good']", "task.train=train.tsv", "task.dev=dev.tsv"),
    # The server evaluates: a node with a limit of epsilon does not.
    *("federation.clients=2", "federation.node_wait=20"),
    *("local.batch_size=8", "federation.timeout=60", "local.lr=0.5", *PRIVATE),
]


def main() -> None:
    """Take the pictures of the documentation, or of every page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="save every page there")
    folder = parser.parse_args().all
    with tempfile.TemporaryDirectory() as parent, chromium() as browser:
        save = partial(_save_everywhere, browser, folder) if folder else partial(_save, browser)
        _watched(Path(parent) / "runs", save)
        _deployed(Path(parent) / "deployment", save)


Save = Callable[[str, str, str], None]  # (name, address, script that makes the page ready)


def _watched(folder: Path, save: Save) -> None:
    """Show the pages of `fedpeft watch` and of a report."""
    for name, more in {
        "private": ["federation.rounds=8", *PRIVATE],
        "slash": ["federation.rounds=25", "method.d=16"],
        "lora": ["federation.rounds=25", "method.name=lora"],
        "bitfit": ["federation.rounds=25", "method.name=bitfit", "local.lr=0.005"],
    }.items():
        _simulate(folder / name, more)
    given, report = folder.with_name("study.toml"), folder.with_name("report.html")
    given.write_text(STUDY)
    run("study", "run", str(given), "--out", str(folder / "methods"))
    run("report", str(folder / "slash"), "--out", str(report))
    run("report", str(folder / "methods"))  # into the study's folder
    live = subprocess.Popen(_simulation(folder / "uneven", UNEVEN), stdout=subprocess.DEVNULL)
    try:
        until(lambda: _lines(folder / "uneven" / "rounds.jsonl") > 60, "rounds")
        with _serving("watch", str(folder)) as address:
            save("watch-list", address, _has("tbody tr:nth-child(5)"))
            save("watch-run", f"{address}runs?name=uneven", _has("#score .line"))
            compared = "runs?name=bitfit&name=lora&name=slash"
            save("watch-compare", f"{address}{compared}", _has("#score .line"))
            save("watch-phone", f"{address}runs?name=private", _has("#score .line"))
            save("watch-study", f"{address}study?name=methods", _has("#scores-0 .mark"))
        save("report-run", report.as_uri(), _has("#score .line"))
        [study] = (folder / "methods").rglob("report.html")
        save("report-study", study.as_uri(), _has("figure svg"))
    finally:
        live.terminate()
        live.wait()


def _deployed(folder: Path, save: Save) -> None:
    """Show the pages of a server and of one of its nodes."""
    folder.mkdir()
    with deployment(folder) as made:
        for name in ("north", "south"):
            _start_node(made, name)
        settings = [*DEPLOYED, f"task.path={made.folder / 'north-data'}"]
        made.run("first", [*settings, "federation.rounds=5"])
        made.submit("wrong", [*settings, "task.labels=['good', 'bad']"])
        made.finish("wrong", expect=1)
        made.submit("second", [*settings, "federation.rounds=400", "seed=1"])
        until(lambda: len(made.rounds("second")) > 1, "rounds", 600)
        (folder / "next.toml").write_text(EXPERIMENT)
        address = page_address(find_connection(str(made.state)))
        save("server-page", address, _has("#runs ~ div tbody tr:nth-child(3)"))
        opened = f"""(document.querySelector("details").open = true,
            document.getElementById("start-name").value = "next",
            document.getElementById("start-text").value = {EXPERIMENT!r}, true)"""
        save("server-start", address, f"{_has('#start')} && {opened}")
        run("run", "--on", str(made.state), "--name", "second", "--stop")
        with _serving("node", "watch", "--state", str(made.node("north"))) as page:
            save("node-page", page, _has(".budget"))


def _start_node(made: Deployment, name: str) -> None:
    data = made.folder / f"{name}-data"
    data.mkdir()
    rows = [f"review number {k} of {name} is {word}\t{word}" for k, word in _rated(240)]
    for table in ("train", "dev"):
        (data / f"{table}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    made.add_node(name)
    limits = ["--max-epsilon", "8", "--examples", "240"]
    made.start_node(
        name, "--data", str(data), "--labels", "bad,good", "--backbone", "tiny", *limits
    )


def _rated(count: int) -> Iterator[tuple[int, str]]:
    for k in range(count):
        yield k, ("bad", "good")[k % 2]


def _simulation(out: Path, settings: list[str]) -> list[str]:
    overrides = [part for setting in [*SMALL, *settings] for part in ("-s", setting)]
    return command("simulate", "--out", str(out), *overrides)


def _simulate(out: Path, settings: list[str]) -> None:
    subprocess.run(_simulation(out, settings), check=True, stdout=subprocess.DEVNULL)


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@contextmanager
def _serving(*arguments: str) -> Iterator[str]:
    """Run a command that serves a page, and yield the address that it prints."""
    line = command(*arguments, "--port", "0")
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        assert process.stdout
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, line
        yield found[0]


def _has(selector: str) -> str:
    return f"document.querySelector({selector!r})"


def _open(browser: Chrome, address: str, ready: str) -> None:
    browser.get(address)
    until(lambda: browser.execute_script(f"return {ready}"), ready)
    time.sleep(0.5)  # for the remaining rows of a list


def _save(browser: Chrome, name: str, address: str, ready: str) -> None:
    """Save a picture of the documentation."""
    if name in ("watch-study", "report-run", "report-study", "server-start"):
        return  # the documentation does not show them
    width = PHONE if name == "watch-phone" else FULL
    set_screen(browser, width, "dark" if name == "watch-run" else "light")
    _open(browser, address, ready)
    _shoot(browser, IMAGES / f"{name}.png", width, CROPPED)


def _save_everywhere(browser: Chrome, folder: Path, name: str, address: str, ready: str) -> None:
    """Save a page in all its forms."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in (FULL, PHONE):
        for scheme in ("light", "dark"):
            set_screen(browser, width, scheme)
            _open(browser, address, ready)
            _shoot(browser, folder / f"{name}-{width}-{scheme}.png", width, 6000)


def _shoot(browser: Chrome, path: Path, width: int, most: int) -> None:
    """Save the page from its top, at most ``most`` pixels high."""
    height = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, most), "scale": 1}
    options = {"clip": clip, "captureBeyondViewport": True}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(shot["data"]))
    print(path)


if __name__ == "__main__":
    main()
