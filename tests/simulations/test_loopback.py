"""Processes are known by pid and start, and a deployment's leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployment.loopback import Deployment, TrialFailed, run, until
from deployment.processes import alive, command_line, descendants, kill, started
from simulations.benchmarks.parts.link import hosts

PARENT = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
)


def test_a_tree_is_found_and_ended_by_pid() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT])
    try:
        until(
            lambda: "sleep(600)" in "".join(map(command_line, descendants(parent.pid))),
            "a child",
            120,
        )
        (child,) = descendants(parent.pid)
        assert alive(child) and started(child) >= started(parent.pid) > 0
        assert started(child) == started(child) != started(1)
    finally:
        for pid in [*descendants(parent.pid), parent.pid]:
            kill(pid)
        parent.wait(120)
    until(lambda: not alive(child), "its end", 120)
    assert started(parent.pid) == 0 and descendants(parent.pid) == []
    assert command_line(parent.pid) == "" and not alive(parent.pid)
    kill(parent.pid)  # one that is gone is no error


def test_unexpected_exits_and_timeouts_report_the_output(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"exit code 2: error: no '.*server.json'"):
        run("server", "status", "--state", str(tmp_path))
    assert "server.json" in run("server", "status", "--state", str(tmp_path), expect=2)
    with pytest.raises(TrialFailed, match=r"^waited 0\.1 s for nothing$"):
        until(lambda: False, "nothing", 0.1)
    made = Deployment(tmp_path)
    made.start("server", sys.executable, "-c", "print('a mistake')").wait(120)
    with pytest.raises(TrialFailed, match="server ended: a mistake"):
        made.wait_for("server", "the server is up")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces, which root may")
def test_every_host_goes_whatever_becomes_of_one() -> None:
    names, entered = [f"fp{os.getpid()}{place}" for place in "abc"], False
    try:
        with hosts(names):
            entered = True
            subprocess.run(["ip", "netns", "delete", names[1]], check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        if not entered:
            pytest.skip("no network namespaces can be made here")
    else:
        pytest.fail("that one could not be deleted again was not said")
    left = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert not [name for name in names if name in left.stdout]
