"""What planning chose for a study is kept in its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedpeft.backbones.checkpoints import checkpoint
from fedpeft.cli.app import main
from fedpeft.errors import UserError
from simulations.study.choices import Choices
from simulations.study.file import parse
from simulations.study.folder import CHOICES, StudyFolder
from simulations.study.plan import Plan

TEXT = """
[base]
federation.clients = 2
federation.rounds = 1
task.train_limit = 40
task.eval_limit = 20
method.d = 16
engine.threads = 1
output.plots = false
"""
AXES = "[axes]\nseed = [0]\nmethod = [{ label = 'a' }, { label = 'b', head.start = 'random' }]\n"


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A folder with the files of MiniLM."""
    return Path(shutil.copytree(checkpoint("minilm"), tmp_path / "backbone"))


def test_a_study_is_read_without_its_backbone(backbone: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "study"
    file.write_text(f"{TEXT}backbone = '{backbone}'\n{AXES}")
    main(["study", "run", str(file), "--out", str(out)])
    settings = [cell.experiment for cell in StudyFolder.open(out).plan().first_cells]
    assert [each.head.start for each in settings] == ["sums", "random"]
    assert {each.representation for each in settings} == {"unit"}
    shutil.rmtree(backbone)
    plan = StudyFolder.open(out).plan()
    assert [cell.experiment for cell in plan.first_cells] == settings
    assert all(StudyFolder.open(out).read(cell) for cell in plan.first_cells)


def test_a_study_that_has_no_choices_keeps_the_values_of_its_time(tmp_path: Path) -> None:
    text = f"{TEXT}backbone = 'minilm'\n[axes]\nseed = [0]"
    folder = StudyFolder.create(tmp_path / "study", text, resume=False)
    assert not (folder.path / CHOICES).exists()
    (cell,) = folder.plan().first_cells
    assert (cell.experiment.representation, cell.experiment.head.start) == ("mean", "random")


def test_choices_are_made_anew_when_settings_change_and_damaged_ones_are_named(
    tmp_path: Path,
) -> None:
    text = f"{TEXT}backbone = 'tiny'\n[axes]\nseed = [0]"
    plan = Plan(parse(text), (), Choices())
    folder = StudyFolder.create(tmp_path / "study", text, resume=False, choices=plan.choices)
    kept = json.loads((folder.path / CHOICES).read_text())
    (choice,) = kept.values()
    assert choice["head.start"] == "sums" and "backbone" not in choice
    choices = folder.choices()
    wider = Plan(parse(text.replace("method.d = 16", "method.d = 8")), (), choices)
    assert len(choices.known) == 2 and wider.first_cells[0].experiment.head.start == "sums"
    (folder.path / CHOICES).write_text("{")
    with pytest.raises(UserError, match=r"choices\.json' is damaged"):
        folder.plan()
