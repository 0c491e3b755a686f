"""Seconds are counted of everything that a command starts, and nothing of it stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.benchmarks.common import child
from simulations.benchmarks.parts.usage import usage_of
from simulations.processes import alive

BURN = "import time\nwhile time.process_time() < 0.8: pass\n"
#: Leaves a process of its own session behind, as a daemon does, and ends.
DAEMON = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"


def test_the_command_its_children_and_daemons_count() -> None:
    python = sys.executable
    waited = child(f"import subprocess\n{BURN}subprocess.run({[python, '-c', BURN]!r})")
    left = child(f"{DAEMON}\n{BURN}", *child(BURN))
    assert usage_of(waited, {}).cpu == pytest.approx(1.6, abs=0.5)
    assert usage_of(left, {}).cpu == pytest.approx(1.6, abs=0.5)


def test_wall_clock_ends_with_the_command_not_its_daemons() -> None:
    found = usage_of(child(DAEMON, "sleep", "3"), {})
    assert 0 < found.wall < 2.5
    assert found.cpu < found.wall


def test_output_and_environment() -> None:
    code = "import os, sys; print(os.environ['HERE'], 'out'); print('err', file=sys.stderr)"
    found = usage_of(child(code), {"HERE": "there"})
    assert "there out" in found.output and "err" in found.output


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        usage_of(child("raise SystemExit('no such thing')"), {})


def test_a_daemon_that_stays_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    stays = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    starts = [*child(DAEMON), *child(stays)]
    watching = f"usage._LINGER = 2; usage.watch({starts!r})"
    code = f"from simulations.benchmarks.parts import usage; {watching}"
    done = subprocess.run(child(code), capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["wall"] < 60
    assert not alive(int(file.read_text()))
