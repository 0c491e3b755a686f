"""Finding runs and studies, and the data of their pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made import add_lines, line, make_run

from fedpeft.errors import UserError
from server.runfolder import RunFolder
from simulations.study.folder import StudyFolder
from simulations.watch import listing
from simulations.watch.folders import find
from simulations.watch.source import Folders

STUDY = """
title = "A <b>study</b>"
[base]
backbone = "tiny"
method.d = 16
federation.rounds = 5
federation.clients = 6
[axes]
seed = [0, 1]
local.lr = [0.1, 0.2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, and a study of four cells: one is finished, one failed."""
    make_run(tmp_path / "one")
    make_run(tmp_path / "deep" / "er" / "two", done=2)
    study = StudyFolder.create(tmp_path / "studies" / "s", STUDY, resume=False)
    cells = study.plan().cells({})
    study.run_of(cells[0]).path.parent.mkdir()
    shutil.copytree(tmp_path / "one", study.run_of(cells[0]).path)
    study.note_failure(cells[1], "it broke", "")
    return tmp_path


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the files at every call, where readers of the page share what was just read."""
    monkeypatch.setattr(listing, "_FRESH", 0.0)
    monkeypatch.setattr(listing, "_SEARCH", 0.0)


def test_runs_and_studies_are_found_below_folders(folder: Path) -> None:
    found = find([folder])
    assert [*found.runs] == ["deep/er/two", "one"] and [*found.studies] == ["studies/s"]
    assert [*find([folder / "one"]).runs] == ["one"]
    names = [*find([folder / "one", folder / "deep", folder / "one"]).runs]
    assert names == ["one", "deep/er/two", "one (2)"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("empty", "holds no run"), ("none", "no such folder"), ("file", "no such")],
)
def test_a_folder_with_nothing_to_show_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=message):
        find([tmp_path / name])


def test_the_list_follows_its_runs(folder: Path) -> None:
    feed = Folders([folder]).feed("list", [])
    whole = feed.whole()
    rows = {row["name"]: row for row in whole["rows"]}
    assert (rows["one"]["state"], rows["one"]["round"]) == ("finished", 5)
    assert (rows["deep/er/two"]["state"], rows["deep/er/two"]["round"]) == ("unfinished", 2)
    assert rows["deep/er/two"]["score"] == pytest.approx(line(2)["score"])
    assert rows["studies/s"] == {
        "name": "studies/s", "kind": "study", "begun": 1, "finished": 1, "failed": 1,
    }  # fmt: skip
    assert feed.changes(whole["cursor"]) is None
    add_lines(folder / "deep" / "er" / "two", line(3))
    make_run(folder / "three", done=1)
    shutil.rmtree(folder / "one")
    change = feed.changes(whole["cursor"])
    assert change and change["gone"] == ["one"] and not change["whole"]
    assert {row["name"]: row["round"] for row in change["rows"]} == {"deep/er/two": 3, "three": 1}
    assert feed.changes(change["cursor"]) is None
    again = feed.changes("other.1")
    assert again and again["whole"] and len(again["rows"]) == 3


def test_a_study_file_beside_runs_does_not_make_their_folder_a_study(folder: Path) -> None:
    (folder / "study.toml").write_text(STUDY)
    found = find([folder])
    assert [*found.runs] == ["deep/er/two", "one"] and [*found.studies] == ["studies/s"]
    (folder / "files").mkdir()
    (folder / "files" / "study.toml").write_text(STUDY)
    with pytest.raises(UserError, match="holds no run"):
        find([folder / "files"])


def test_a_damaged_run_is_listed_as_damaged(folder: Path) -> None:
    (folder / "deep" / "er" / "two" / "experiment.toml").write_text("= broken")
    rows = {row["name"]: row for row in Folders([folder]).feed("list", []).whole()["rows"]}
    assert rows["deep/er/two"]["state"] == "damaged" and "TOML" in rows["deep/er/two"]["reason"]
    assert rows["one"]["state"] == "finished"


def test_a_study_shows_all_its_cells(folder: Path) -> None:
    feed = Folders([folder]).feed("study", ["studies/s"])
    whole = feed.whole()
    assert whole["title"] == "A <b>study</b>" and whole["study"]["axes"] == ["seed", "local.lr"]
    states = [row["state"] for row in whole["rows"]]
    assert states == ["finished", "failed", "waiting", "waiting"]
    assert whole["rows"][0]["labels"] == {"seed": "0", "local.lr": "0.1"}
    assert whole["rows"][1]["reason"] == "it broke"
    study = StudyFolder(folder / "studies" / "s")
    cell = study.plan().cells({})[2]
    make_run(study.run_of(cell).path, done=1)
    with RunFolder(study.run_of(cell).path).locked():
        change = feed.changes(whole["cursor"])
    assert change and [row["state"] for row in change["rows"]] == ["running"]


def test_a_broken_study_says_so(folder: Path) -> None:
    (folder / "studies" / "s" / "study.toml").write_text("title = 3")
    whole = Folders([folder]).feed("study", ["studies/s"]).whole()
    assert "study.toml" in whole["study"]["problem"] and whole["rows"] == []


def test_runs_of_a_study_have_pages_and_can_be_compared(folder: Path) -> None:
    source = Folders([folder])
    cell = source.feed("study", ["studies/s"]).whole()["rows"][0]["name"]
    feed = source.feed("runs", ["one", cell, "one"])
    whole = feed.whole()
    assert [run["name"] for run in whole["runs"]] == ["one", cell]
    assert whole["title"] == "2 runs compared"
    assert feed.changes(whole["cursor"]) is None
    add_lines(folder / "one", line(6))
    change = feed.changes(whole["cursor"])
    assert change and [run["name"] for run in change["runs"]] == ["one"]
    assert change["runs"][0]["columns"]["round"] == [6]


@pytest.mark.parametrize(
    "name",
    ["", "none", "../one", "one/..", "/etc", "studies/s", "studies/s/cells/none", "deep"],
)
def test_other_names_have_no_page(folder: Path, name: str) -> None:
    with pytest.raises(KeyError):
        Folders([folder / "deep", folder / "studies"]).feed("runs", [name])


def test_the_first_page_is_the_list_or_the_only_run(folder: Path) -> None:
    assert Folders([folder]).home() == ("list", [])
    assert Folders([folder / "one"]).home() == ("runs", ["one"])
    assert Folders([folder / "studies"]).home() == ("study", ["s"])


def test_a_partition_is_reduced_for_the_page(folder: Path) -> None:
    clients = [list(range(n)) for n in range(1, 301)]
    counts = [[n - 1, 1] for n in range(1, 301)]
    partition = {"digest": "d", "clients": clients, "labels": ["a", "b"], "counts": counts}
    (folder / "one" / "partition.json").write_text(json.dumps(partition))
    run = Folders([folder / "one"]).feed("runs", ["one"]).whole()["runs"][0]
    shown = run["head"]["partition"]
    assert (shown["clients"], shown["sorted"], len(shown["bars"])) == (300, True, 120)
    assert shown["bars"][0] == [299, 1] and shown["bars"][-1] == [0, 1]
    assert (shown["smallest"], shown["median"], shown["largest"]) == (1, 150.5, 300)
    assert shown["names"] == []
    names = [f"store {n}" for n in range(1, 301)]
    (folder / "one" / "partition.json").write_text(json.dumps({**partition, "names": names}))
    named = Folders([folder / "one"]).feed("runs", ["one"]).whole()["runs"][0]["head"]["partition"]
    assert [named["names"][place] for place in (0, -1)] == ["store 300", "store 1"]
    assert named["bars"] == shown["bars"] and len(named["names"]) == 120
    (folder / "one" / "partition.json").write_text("{")
    run = Folders([folder / "one"]).feed("runs", ["one"]).whole()["runs"][0]
    assert run["head"]["partition"] is None
