"""Every family with every method in every format that can express it predicts as the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import READINGS, assert_predicts, examples_for, said_by_readme
from finished import made_up, method, saved_family, small
from models import METHODS, SMALL
from pairs import covering, fitting
from small_families import CONFIGS, small_config

from fedpeft.backbones.families import FAMILIES
from fedpeft.backbones.known import shape_of_config
from fedpeft.export import export
from fedpeft.export.heads import head_of
from fedpeft.export.obstacles import Subject, obstacle
from fedpeft.export.onnx import _Graph, _portable
from fedpeft.export.plain import REFUSAL
from fedpeft.methods import build_method, settings_for
from fedpeft.predicting import encode_texts, predict
from fedpeft.trained import Trained

SCALES = {"full": 1e-2, "said": 0.5, "bitfit": 0.1, "lora": 0.1}
#: peft uses names that transformers deprecated; a head without outputs has weights without values.
warns = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning", "ignore:.*zero-element:UserWarning"
)


def reads_of(family: str, name: str) -> str:
    """Return what a run reads here: mostly the token that transformers' own class reads."""
    return "mask" if name == "jr_warp" else "last" if FAMILIES[family].reads_last else "cls"


def cells(kind: Any, names: list[str] = METHODS) -> list[tuple[str, str]]:
    """Return the pairs of a family and a method that a format can express."""
    pairs = []
    for family, name in fitting(CONFIGS, names):
        shape = shape_of_config(small_config(family))
        built = build_method(settings_for({"name": name, **SMALL[name]}), shape, seed=3)
        if not obstacle(kind, Subject(built, reads_of(family, name))):
            pairs.append((family, name))
    return pairs


def run_of(path: Path, family: str, name: str, *settings: str) -> Trained:
    """Return a run that never was on a small backbone of a family."""
    reads = f"representation={reads_of(family, name)}"
    values = (f"backbone={saved_family(family)}", "task.max_length=40", reads, *settings)
    scale = SCALES.get(name, 0.3)
    return Trained.read(made_up(path, small(*values, *method(name, SMALL[name])), scale))


@warns
@pytest.mark.parametrize(("family", "name"), covering(cells("hf"), names=["lora"]))
def test_a_plain_model_predicts_as_the_run(
    family: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's code, and transformers' own pipeline, which refuses a head that it has not."""
    from transformers import pipeline

    trained = run_of(tmp_path / "vector", family, name)
    export(trained, "hf", tmp_path / "out")
    assert_predicts(said_by_readme(tmp_path / "out", trained, monkeypatch), trained)
    examples = examples_for(trained)
    classify = pipeline("text-classification", str(tmp_path / "out"), device="cpu")
    if head_of(trained) is None:
        with pytest.raises(ValueError, match=REFUSAL):
            classify(examples.text)
        return
    assert [each["label"] for each in classify(examples.text)] == [
        prediction.value for prediction in predict(trained, examples)
    ]


@warns
@pytest.mark.parametrize(("family", "name"), covering(cells("peft"), names=[]))
def test_an_adapter_predicts_as_the_run(
    family: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = run_of(tmp_path / "vector", family, name)
    export(trained, "peft", tmp_path / "out")
    assert_predicts(said_by_readme(tmp_path / "out", trained, monkeypatch), trained)


@warns
@pytest.mark.parametrize("reading", ["tags", "mean-pair", "score-mean"])
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_exports_every_reading(
    family: str, reading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapts = "q" in FAMILIES[family].stacks[0].sites and reading != "score-mean"
    trained = run_of(
        tmp_path / "vector", family, "lora" if adapts else "linear", *READINGS[reading]
    )
    for kind in ("hf", "peft") if adapts else ("hf",):
        export(trained, kind, tmp_path / kind)  # type: ignore[arg-type]
        assert_predicts(said_by_readme(tmp_path / kind, trained, monkeypatch), trained)


@pytest.mark.parametrize(("family", "name"), covering(cells("onnx"), names=["slash"]))
def test_the_function_for_onnx_predicts_as_the_run(family: str, name: str, tmp_path: Path) -> None:
    """Before its conversion, which ``test_strangers`` tests for each family and method."""
    trained = run_of(tmp_path / "vector", family, name)
    with _portable(trained) as model, torch.no_grad():
        graph = _Graph(model, trained.reads)
        encoded = encode_texts(trained, examples_for(trained))
        batch = model.collate([encoded], [np.arange(len(encoded.labels))])
        vectors = torch.from_numpy(trained.vector).expand(len(batch.input_ids), -1)
        given = {**vars(batch), "vectors": vectors}
        outputs = graph(*(given[name] for name in graph.names))
    assert_predicts(list(outputs.numpy()), trained)
