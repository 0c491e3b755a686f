"""A run as its page shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made import add_lines, line, make_run

from fedpeft.page.run.run import RunView
from fedpeft.runs.folder import RunFolder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", rounds=6, done=2, more=("local.lr=0.003",))


def test_the_whole_holds_settings_rows_and_state(path: Path) -> None:
    whole = RunView(path, "r").whole()
    head = whole["head"]
    assert (head["state"], head["rounds"], head["metric"]) == ("unfinished", 6, "accuracy")
    assert whole["columns"]["round"] == [1, 2]
    assert ["local.lr", "0.003", "the method's"] in head["settings"]
    assert ["federation.clients", "6", "10"] in head["settings"]
    same = [key for key, value, default in head["settings"] if value == default]
    assert {"seed", "task.name", "local.batch_size", "privacy.unit", "wire.up"} <= {*same}
    assert head["result"] is None and head["use"]["commands"] == []
    json.dumps(whole, allow_nan=False)


def test_an_update_holds_only_what_is_new(path: Path) -> None:
    view = RunView(path, "r")
    cursor = view.whole()["cursor"]
    assert view.update(cursor) is None
    add_lines(path, line(3))
    update = view.update(cursor)
    assert update and update["from"] == 2 and update["columns"]["round"] == [3]
    assert "head" not in update and view.update(update["cursor"]) is None


@pytest.mark.parametrize("cursor", ["", "9-x.1.abc.0", "...", "a.b"])
def test_a_cursor_of_another_server_gets_everything(path: Path, cursor: str) -> None:
    update = RunView(path, "r").update(cursor)
    assert update and update["from"] == 0 and update["head"]


def test_states_follow_the_files(path: Path) -> None:
    view = RunView(path, "r")
    cursor = view.whole()["cursor"]
    with RunFolder(path).locked():
        update = view.update(cursor)
        assert update and update["head"]["state"] == "running"
    (path / "ended.json").write_text(json.dumps({"ok": False, "reason": "no nodes"}))
    head = view.whole()["head"]
    assert head["state"] == "failed" and head["problems"] == ["the run failed: no nodes"]
    (path / "ended.json").unlink()
    RunFolder(path).report("train", 3, 1, 6)
    update = view.update(view.whole()["cursor"] + "0")
    assert update and update["progress"]["done"] == 1


def test_progress_alone_is_an_update(path: Path) -> None:
    view = RunView(path, "r")
    cursor = view.whole()["cursor"]
    RunFolder(path).report("train", 3, 1, 6)
    update = view.update(cursor)
    assert update and update["progress"] == {"phase": "train", "round": 3, "done": 1, "total": 6}
    assert update["columns"]["round"] == [] and "head" not in update


def test_a_finished_run_says_how_to_repeat_and_use_it(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a run")
    head = RunView(path, "r").whole()["head"]
    assert head["state"] == "finished"
    assert head["repeat"]["commands"] == [f"fedpeft simulate '{path}/experiment.toml' --out NEW"]
    assert f"fedpeft predict '{path}' NEW.tsv" in head["use"]["commands"]
    assert head["privacy"][0].startswith("No differential privacy")
    (path / "roster.json").write_text('{"nodes": []}')
    (path / "result.json").touch()
    assert "deployment" in RunView(path, "r").whole()["head"]["repeat"]["about"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("experiment.toml", "= broken"), ("result.json", "{"), ("refused.jsonl", "{\n")],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(
    tmp_path: Path, name: str, content: str
) -> None:
    path = make_run(tmp_path / "run")
    (path / name).write_text(content)
    whole = RunView(path, "r").whole()
    (problem,) = whole["head"]["problems"]
    assert name in problem
    assert len(whole["columns"]["round"]) == 5


def test_the_page_of_a_run_needs_no_torch(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from simulations.watch.source import Folders;"
        f"Folders([Path({str(path)!r})]).feed('runs', ['run']).whole();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
