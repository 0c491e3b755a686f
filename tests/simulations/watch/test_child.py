"""The page beside a simulation."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
import pytest
from made import make_run

from fedpeft.cli.app import main
from simulations.watch.child import watched


def test_the_page_lives_as_long_as_the_context(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 5, 2)
    with watched(run) as address:
        assert "2" in httpx.get(address, timeout=120).text
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_simulate_prints_the_address_of_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delitem(os.environ, name, raising=False)
    settings = ["backbone=tiny", "method.d=16", "task.train_limit=60", "task.eval_limit=20"]
    more = ["federation.clients=2", "federation.rounds=1", "engine.threads=1", "output.plots=false"]
    options = [part for setting in settings + more for part in ("-s", setting)]
    main(["simulate", *options, "--watch", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert re.search(r"^page: http://127\.0\.0\.1:\d+/$", printed, re.MULTILINE)
    assert (tmp_path / "run" / "result.json").exists()
