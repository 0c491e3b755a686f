"""The folder of a deployed run: which process runs in it, how it ended, and its lock."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from server import deployed
from server.deployed import opened

Context = Callable[..., Any]


@pytest.fixture
def context(
    quick: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Context:
    """Return a maker of what a deployed ServerApp is given for the run 'trial'."""
    monkeypatch.setenv("FEDPEFT_SERVER_STATE", str(tmp_path))

    def make(run: int, resume: int = 0, **more: int) -> Any:
        config = {"experiment": quick().to_toml(), "out": "trial", "resume": resume, **more}
        return SimpleNamespace(run_id=run, run_config=config)

    return make


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_folder_names_its_process_from_the_start_and_the_outcome_at_the_end(
    context: Context, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "trial"
    with opened(context(7)) as folder:
        assert folder.path == run
        assert read(run / "run.json") == {"run": "7"} and not (run / "ended.json").exists()
    assert read(run / "ended.json") == {"run": "7", "ok": True, "reason": ""}
    with pytest.raises(RunFailed), opened(context(8, resume=1)):
        assert read(run / "run.json") == {"run": "8"} and not (run / "ended.json").exists()
        raise RunFailed("no nodes")
    assert read(run / "ended.json") == {"run": "8", "ok": False, "reason": "no nodes"}
    assert read(run / "run.json") == {"run": "8"}


def test_a_run_stopped_by_sigterm_is_stopped_not_failed(
    context: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "runs" / "trial"
    with pytest.raises(SystemExit), opened(context(7)):
        raise SystemExit(0)  # which is what Flower makes of SIGTERM
    assert read(run / "ended.json") == {
        "run": "7",
        "ok": False,
        "stopped": True,
        "reason": "stopped",
    }
    assert not caplog.records
    with pytest.raises(RunFailed), opened(context(8, resume=1)):
        raise RunFailed("no nodes")
    assert [record.getMessage() for record in caplog.records] == [
        "run 'trial' has failed: no nodes"
    ]


@pytest.mark.parametrize("handled", [True, False])
def test_a_run_that_is_ended_at_once_by_sigterm_is_stopped(
    context: Context, tmp_path: Path, handled: bool
) -> None:
    """Flower's handler may end the process before an exception reaches the run."""
    script = f"""
import os, signal
from types import SimpleNamespace
from server.deployed import opened
if {handled}:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
with opened(SimpleNamespace(run_id=7, run_config={context(7).run_config!r})):
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == (7 if handled else -signal.SIGTERM), done.stderr
    assert read(tmp_path / "runs" / "trial" / "ended.json")["stopped"]


def test_the_earlier_handler_of_sigterm_comes_back(context: Context) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with opened(context(7)):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_mistake_of_the_user_is_recorded_as_one(context: Context, tmp_path: Path) -> None:
    with opened(context(7)):
        pass
    refused = pytest.raises(UserError, match=r"--from-round 4: .* after no round only")
    with refused, opened(context(8, resume=1, **{"from-round": 4})):
        pytest.fail("there is no such round")
    ended = read(tmp_path / "runs" / "trial" / "ended.json")
    assert ended["mistake"] is True and ended["reason"].startswith("--from-round 4: ")


def test_a_new_process_waits_until_the_old_one_releases_the_folder(
    context: Context, tmp_path: Path
) -> None:
    with opened(context(7)) as folder:
        pass
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with folder.locked():
            held.set()
            released.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(120)
        threading.Timer(0.5, released.set).start()
        with opened(context(8, resume=1)):
            assert released.is_set()
            assert read(tmp_path / "runs" / "trial" / "run.json") == {"run": "8"}
    finally:
        released.set()
        holder.join()


def test_a_process_that_keeps_the_folder_is_not_disturbed(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "_LOCK_TIMEOUT", 0.2)
    refused = pytest.raises(UserError, match="in use by another process")
    with opened(context(7)):
        with refused, opened(context(8, resume=1)):
            pytest.fail("two have the folder")
        assert read(tmp_path / "runs" / "trial" / "run.json") == {"run": "7"}
