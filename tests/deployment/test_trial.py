"""`fedpeft trial` from its start to Ctrl-C, and a third site that joins it with its kit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.loopback import command, run, until
from simulations.processes import alive, descendants

pytestmark = pytest.mark.long


def commands_of(readme: Path) -> list[list[str]]:
    """Return the commands of a kit, as a site would type them."""
    code = re.sub(r"\\\n\s*", "", readme.read_text())
    return [shlex.split(line) for line in code.splitlines() if line.startswith("    ")]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_trial_runs_takes_a_site_with_its_kit_and_leaves_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    site, printed = tmp_path / "site", tmp_path / "printed"
    with printed.open("w") as output:
        trial = subprocess.Popen(
            command("trial", "--nodes", "2", "--backbone", "tiny"),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    children: list[int] = []
    node = None
    try:
        until(lambda: "Ctrl-C ends" in printed.read_text() or trial.poll() is not None, "the trial")
        assert trial.poll() is None, printed.read_text()
        text = printed.read_text()
        [folder] = temporary.glob("fedpeft-trial-*")
        assert "accuracy" in text and (folder / "runs" / "first" / "result.json").is_file()
        assert re.search(r"the server's page: https://127\.0\.0\.1:\d+/watch/\?token=\w+", text)
        assert len(re.findall(r"the page of node (?:north|south): http://\S+", text)) == 2

        state = ["--state", str(folder / "server")]
        experiment = ["--experiment", str(folder / "experiment.toml")]
        made = run("server", "kit", "east", *state, "--out", str(site), *experiment)
        check, key, up, *_ = commands_of(site / "README.md")
        shown = subprocess.run(check, cwd=site, capture_output=True, text=True, check=True).stdout
        assert shown.split("=")[1].strip() in made
        site_env = {**os.environ, "PATH": f"{Path(command()[0]).parent}:{os.environ['PATH']}"}
        subprocess.run(key, cwd=site, env=site_env, check=True, capture_output=True)
        data = str(folder / "data" / "north" / "reviews.tsv")
        up = [data if word == "DATA" else word for word in up]
        with (tmp_path / "node").open("w") as output:
            node = subprocess.Popen(
                up, cwd=site, env=site_env, stdout=output, stderr=subprocess.STDOUT
            )
        log = site / "state" / "node.log"
        until(lambda: log.exists() and "yet: waiting (--wait)" in log.read_text(), "its refusal")
        run("server", "add-node", str(site / "east.pub"), *state)
        until(lambda: "the node is up" in log.read_text(), "the node")
        online = re.compile(r"^east +\d+ +online", re.M)
        until(lambda: online.search(run("server", "status", *state)), "the node in the status")
        node.send_signal(signal.SIGINT)
        assert node.wait(60) == 0

        children = descendants(trial.pid)
        assert len(children) > 10
        trial.send_signal(signal.SIGINT)
        assert trial.wait(60) == 0
    finally:
        for process in filter(None, (trial, node)):
            process.terminate()
            process.wait(60)
    assert printed.read_text().endswith("is removed\n")
    assert not [pid for pid in children if alive(pid)]
    assert not [*temporary.glob("fedpeft-*")]
