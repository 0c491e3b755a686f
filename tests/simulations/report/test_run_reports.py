"""Reports of runs: one file each, without a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made import add_lines, line, make_run

from fedpeft.cli.app import main
from simulations.study.folder import StudyFolder


def data_of(path: Path) -> dict[str, Any]:
    """Return the data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found
    return dict(json.loads(found[1]))


def test_a_run_has_a_report_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    main(["report", str(run)])
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    data = data_of(run / "report.html")
    assert (data["view"], data["live"], data["title"]) == ("runs", False, "run")
    (shown,) = data["runs"]
    assert shown["columns"]["score"] == [line(number)["score"] for number in range(1, 6)]
    assert shown["head"]["result"]["vector_size"] == 82
    assert ["method.d", "16", None] in shown["head"]["settings"]
    before = (run / "report.html").read_bytes()
    main(["report", str(run)])
    assert data_of(run / "report.html")["runs"][0]["columns"] == shown["columns"]
    assert len((run / "report.html").read_bytes()) == len(before)


def test_several_runs_are_compared_in_a_named_file(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", more=("seed=1",))]
    main(["report", *map(str, runs), "--out", str(tmp_path / "new" / "both.html")])
    data = data_of(tmp_path / "new" / "both.html")
    assert [run["name"] for run in data["runs"]] == ["a/run", "b/run"]
    assert data["title"] == "2 runs compared"


def test_a_damaged_line_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", 9, 2)
    with (run / "rounds.jsonl").open("a") as file:
        file.write("{broken\n")
    add_lines(run, line(4))
    main(["report", str(run)])
    assert "run: rounds.jsonl line 3 is damaged" in capsys.readouterr().err
    assert data_of(run / "report.html")["runs"][0]["columns"]["round"] == [1, 2, 4]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["none"], [], "holds no run"),
        (["."], [], "holds no run (experiment.toml); expected run folders, such as 'run'"),
        (["run", "run"], [], "--out is missing"),
        (["run"] * 13, ["--out", "x.html"], "at most 12"),
        (["study", "run"], [], "is a study"),
        (["study"], ["--out", "x.html"], "the report of a study is in its folder"),
        (["run"], ["--out", "run/result.json/x.html"], "cannot be written"),
        (["run"], ["--out", "."], "--out .: is a folder; expected a file"),
    ],
)
def test_wrong_arguments_are_errors_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    StudyFolder.create(tmp_path / "study", "", resume=False)
    with pytest.raises(SystemExit) as stop:
        main(["report", *names, *options])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
