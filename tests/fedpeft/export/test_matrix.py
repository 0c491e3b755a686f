"""Every family with every method in every format: exported and compared, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exports import READINGS, assert_predicts, said_by_readme
from finished import made_up, method, saved_family, small
from models import METHODS, SMALL
from pairs import fitting
from small_families import CONFIGS

from fedpeft.backbones.families import FAMILIES
from fedpeft.errors import UserError
from fedpeft.export import Format, export
from fedpeft.export.obstacles import Subject, obstacle
from fedpeft.trained import Trained

#: jr_warp needs the mask of a text.
PAIRS = fitting(CONFIGS, METHODS)
SCALES = {"full": 1e-2, "said": 0.5, "bitfit": 0.1, "lora": 0.1}
warns = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning", "ignore:.*zero-element:UserWarning"
)


def representation(family: str, name: str = "") -> str:
    """Return what a run reads: as transformers' class where there is one."""
    return "mask" if name == "jr_warp" else "last" if FAMILIES[family].reads_last else "cls"


def run_of(path: Path, family: str, name: str, *settings: str) -> Trained:
    """Return a run that never was on a small backbone of a family."""
    reads = f"representation={representation(family, name)}"
    values = (f"backbone={saved_family(family)}", "task.max_length=40", reads, *settings)
    scale = SCALES.get(name, 0.3)
    return Trained.read(made_up(path, small(*values, *method(name, SMALL[name])), scale))


def check(trained: Trained, kind: Format, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare an export with the run, or its refusal with the decision."""
    subject = Subject(trained.model.method, trained.reads)
    if why := obstacle(kind, subject):
        with pytest.raises(UserError) as caught:
            export(trained, kind, folder)
        assert f"--format {kind}: {why}; formats for this run: " in str(caught.value)
        return
    export(trained, kind, folder)
    assert_predicts(said_by_readme(folder, trained, monkeypatch), trained)


@warns
@pytest.mark.parametrize("kind", ["hf", "peft"])
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_an_export_predicts_as_the_run(
    family: str, name: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(run_of(tmp_path / "vector", family, name), kind, tmp_path / "out", monkeypatch)


@warns
@pytest.mark.parametrize("reading", ["tags", "mean-pair", "score-mean"])
@pytest.mark.parametrize("kind", ["hf", "peft"])
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_exports_every_reading(
    family: str, kind: Any, reading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "lora" if "q" in FAMILIES[family].stacks[0].sites else "linear"
    trained = run_of(tmp_path / "vector", family, name, *READINGS[reading])
    check(trained, kind, tmp_path / "out", monkeypatch)


@pytest.mark.parametrize("family", CONFIGS)
def test_onnx(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run_of(tmp_path / "vector", family, "slash"), "onnx", tmp_path / "out", monkeypatch)
