"""Data that changes between the runs of a study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_studies import Watched, here

from fedpeft.errors import UserError
from simulations.report.page import write_report
from simulations.study.agreement import disagreements
from simulations.study.execution import run_study
from simulations.study.folder import StudyFolder

DIFFER = "cells differ in their data or weights"  # not in the report of test_page.py
STUDY = """
[base]
backbone = "tiny"
task.name = "custom"
task.train = "FILE"
federation.clients = 2
federation.rounds = 1
[axes]
seed = [0, 1]
method = [{ label = "linear", method.name = "linear" }]
"""


def write(path: Path, word: str) -> None:
    rows = [f"{word} film {number},{number % 2}" for number in range(30)]
    path.write_text("\n".join(["text,label", *rows]))


def test_a_file_that_changes_between_two_runs_is_reported(
    folder_of: Callable[..., StudyFolder], tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    write(path, "good")
    study = STUDY.replace("FILE", str(path))
    folder = folder_of(study)
    run_study(folder, folder.plan(), here, Watched())
    assert disagreements(folder, folder.plan().cells({})) == []  # seeds hold out other rows

    write(path, "bad")
    more = study.replace("}]", '}, { label = "other", method.name = "linear", local.lr = 0.1 }]')
    folder = folder_of(more, True)
    with pytest.raises(UserError) as caught:
        run_study(folder, folder.plan(), here, Watched())
    said = str(caught.value)
    assert said.startswith("custom with seed 0: the examples changed between runs")
    assert "0-linear-" in said and "0-other-" in said and said.endswith("add --resume")

    page = write_report(folder.path)[0].read_text()
    assert DIFFER in page
    assert "custom with seed 1: the examples changed between runs" in page

    for cell in folder.plan().cells({}):
        if cell.labels["method"] == "linear":
            folder.set_aside(cell)
    assert not run_study(folder, folder.plan(), here, Watched()).failed
    assert disagreements(folder, folder.plan().cells({})) == []
