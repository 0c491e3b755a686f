"""The folder of a run in a server's state folder: whose it is, how it ended, who waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed, UserError
from server import deployed
from server.deployed import opened

Context = Callable[..., Any]


@pytest.fixture
def context(
    quick: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Context:
    """Return a maker of what a deployed ServerApp is given for the run 'trial'."""
    monkeypatch.setenv("FEDPEFT_SERVER_STATE", str(tmp_path))

    def make(run: int, resume: int = 0) -> Any:
        config = {"experiment": quick().to_toml(), "out": "trial", "resume": resume}
        return SimpleNamespace(run_id=run, run_config=config)

    return make


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_folder_says_whose_it_is_from_the_start(context: Context, tmp_path: Path) -> None:
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


def test_a_run_that_is_told_to_end_has_not_failed(
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


def test_a_server_app_that_is_ending_is_waited_for(context: Context, tmp_path: Path) -> None:
    with opened(context(7)) as folder:
        pass
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with folder.locked():
            held.set()
            let_go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(10)
        threading.Timer(0.5, let_go.set).start()
        with opened(context(8, resume=1)):
            assert let_go.is_set()
            assert read(tmp_path / "runs" / "trial" / "run.json") == {"run": "8"}
    finally:
        let_go.set()
        holder.join()


def test_one_that_stays_is_not_disturbed(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "_LETTING_GO", 0.2)
    refused = pytest.raises(UserError, match="in use by another process")
    with opened(context(7)):
        with refused, opened(context(8, resume=1)):
            pytest.fail("two have the folder")
        assert read(tmp_path / "runs" / "trial" / "run.json") == {"run": "7"}
