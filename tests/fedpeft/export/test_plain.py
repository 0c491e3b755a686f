"""Exports predict what the run predicts, in other people's code: transformers, peft, the README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import (
    PAIRS,
    READINGS,
    TEXTS,
    assert_predicts,
    examples_for,
    expected_of,
    flat,
    said_by_readme,
)
from finished import finished_run, made_up, method, saved_backbone, small
from models import METHODS, SMALL
from safetensors import SafetensorError
from safetensors.torch import load_file
from scipy.special import softmax

from fedpeft.errors import UserError
from fedpeft.export import Format, check_target, default_target, export
from fedpeft.export.heads import head_of
from fedpeft.export.plain import realise
from fedpeft.methods import method_class
from fedpeft.modifications.fusing import fused
from fedpeft.predicting import encode_texts, predict, read_texts
from fedpeft.trained import Trained
from fedpeft.training import outputs_of

FUSABLE = [name for name in METHODS if method_class(name).fusable]


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["hf", pytest.param("onnx", marks=pytest.mark.long)])
def test_compact_weights_are_merged_with_the_values_they_have(
    tmp_path: Path, kind: Format, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(*READINGS["cls"], f"engine.weights={form}", "method.name=slash", "method.d=12")
    trained = Trained.read(made_up(tmp_path / "vector", settings, 0.3))
    export(trained, kind, tmp_path / "out")
    assert trained.model.backbone.weights == form
    whole = trained.in_float32()
    outputs = said_by_readme(tmp_path / "out", whole, monkeypatch)
    np.testing.assert_allclose(flat(outputs), flat(expected_of(whole)), rtol=0, atol=1e-5)
    if form == "int8":
        np.testing.assert_allclose(flat(outputs), flat(expected_of(trained)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backbone", ["tiny", "bert"])
@pytest.mark.parametrize("name", FUSABLE)
def test_fused_predicts_as_unfused(tmp_path: Path, name: str, backbone: str) -> None:
    base = backbone if backbone == "tiny" else saved_backbone(backbone)
    settings = small(f"backbone={base}", "task.max_length=48", *method(name, SMALL[name]))
    scale = {"full": 1e-2, "said": 0.5, "bitfit": 0.1, "lora": 0.1}.get(name, 0.3)
    trained = Trained.read(made_up(tmp_path / "vector", settings, scale))
    encoded, realised = encode_texts(trained, examples_for(trained)), realise(trained)
    unfused, model = outputs_of(trained.model, trained.vector, encoded), trained.model
    shape = model.method.shape
    without = type(trained)(**{**vars(trained), "model": HeadOnly(trained)})
    plain = outputs_of(without.model, without.vector, encoded)
    with fused(model.backbone.model, shape, realised.modifications):
        np.testing.assert_allclose(
            outputs_of(without.model, without.vector, encoded), unfused, rtol=0, atol=1e-5
        )
    if name != "linear":
        assert np.abs(plain - unfused).max() > 1e-3, "the method changes nothing here"
    np.testing.assert_array_equal(
        outputs_of(without.model, without.vector, encoded), plain
    )  # and it is undone


class HeadOnly:
    """A run's model without the method's modifications."""

    def __init__(self, trained: Trained):
        self._model = trained.model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def realise(self, vectors: torch.Tensor) -> Any:
        realised = self._model.realise(vectors)
        return type(realised)([], realised.head_weight, realised.head_bias)


@pytest.mark.parametrize("name", ["slash", "lora"])
@pytest.mark.parametrize("reading", READINGS)
def test_the_readme_of_a_plain_model_predicts_as_the_run(
    tmp_path: Path, reading: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished_run(*READINGS[reading], *method(name, SMALL[name]))
    trained = Trained.read(folder)
    export(trained, "hf", tmp_path / "plain")
    predictions = said_by_readme(tmp_path / "plain", trained, monkeypatch)
    assert_predicts(predictions, trained)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "fedpeft" not in json.dumps(config)
    if trained.kind != "score":
        named = trained.labels if head_of(trained) else ()
        assert list(config["id2label"].values()) == list(named)


@pytest.mark.long
@pytest.mark.parametrize("reading", ["mean-pair", "score-cls", "tags"])
def test_a_fused_bert_predicts_as_unfused(
    tmp_path: Path, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MiniLM's tokenizer gives the second text of a pair a type of its own."""
    settings = small(*READINGS[reading], "backbone=minilm", "method.name=slash", "method.d=64")
    trained = Trained.read(made_up(tmp_path / "vector", settings, 1.0))
    export(trained, "hf", tmp_path / "plain")
    predictions = said_by_readme(tmp_path / "plain", trained, monkeypatch)
    assert_predicts(predictions, trained)


@pytest.mark.parametrize("kind", ["float64", "regenerated", "projected", "low rank", "labels"])
def test_other_settings_are_exported_too(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = {
        "float64": "engine.dtype=float64",
        "regenerated": "engine.projections=regenerated",
        "projected": "head.d=5",
        "low rank": "head.rank=1",
        "labels": "head.labels=true",
    }[kind]
    trained = Trained.read(finished_run(*READINGS["cls"], setting, "method.d=12"))
    export(trained, "hf", tmp_path / "plain")
    predictions = said_by_readme(tmp_path / "plain", trained, monkeypatch)
    assert_predicts(predictions, trained)


@pytest.mark.long
def test_a_plain_model_needs_no_fedpeft_and_gives_the_predictions(tmp_path: Path) -> None:
    """As transformers' own pipeline, in a process that does not see fedpeft."""
    trained = Trained.read(finished_run(*READINGS["cls"], *method("lora", SMALL["lora"])))
    export(trained, "hf", tmp_path / "plain")
    script = (
        "import json, sys; from transformers import pipeline\n"
        "made = pipeline('text-classification', sys.argv[1], device='cpu', top_k=None)\n"
        "print(json.dumps(made(json.loads(sys.argv[2]))))\n"
        "sys.exit('fedpeft' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "plain"), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for row, expected in zip(
        json.loads(done.stdout), predict(trained, examples_for(trained)), strict=True
    ):
        assert {each["label"]: pytest.approx(each["score"], abs=1e-5) for each in row} == (
            expected.probabilities
        )
        assert row[0]["label"] == expected.value


@pytest.mark.parametrize("name", METHODS)
def test_an_exported_vector_predicts_as_the_run(tmp_path: Path, name: str) -> None:
    trained = Trained.read(finished_run(*method(name, SMALL[name])))
    export(trained, "vector", tmp_path / "vector.safetensors")
    again = Trained.read(tmp_path / "vector.safetensors")
    texts = examples_for(trained)
    assert predict(again, texts) == predict(trained, texts)
    assert again.about == trained.about


def test_exports_and_predictions_of_a_file_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of one file of pairs: predict, and the README of the export, row by row."""
    trained = Trained.read(finished_run(*READINGS["cls-pair"], "method.name=slash", "method.d=12"))
    rows = "".join(f"{one}\t{two}\n" for one, two in zip(TEXTS, PAIRS, strict=True))
    (tmp_path / "in.tsv").write_text(f"text\ttext_pair\n{rows}")
    expected = predict(trained, read_texts(trained, tmp_path / "in.tsv"))
    export(trained, "hf", tmp_path / "plain")
    logits = np.array(said_by_readme(tmp_path / "plain", trained, monkeypatch))
    chances = [list((each.probabilities or {}).values()) for each in expected]
    np.testing.assert_allclose(softmax(logits, axis=1), chances, atol=1e-5)


def test_the_head_is_saved_beside_the_encoder(tmp_path: Path) -> None:
    trained = Trained.read(finished_run(*READINGS["mask-pair"], "method.d=12"))
    export(trained, "hf", tmp_path / "plain")
    head = load_file(tmp_path / "plain" / "head.safetensors")
    assert {name: tuple(t.shape) for name, t in head.items()} == {"weight": (3, 32), "bias": (3,)}
    expected = trained.model.layout.unpack(torch.from_numpy(trained.vector)[None])
    torch.testing.assert_close(head["weight"], expected["head.weight"][0])


def test_the_backbone_is_not_changed(tmp_path: Path) -> None:
    settings = (*READINGS["cls"], "task.max_length=20", *method("lora", SMALL["lora"]))
    trained = Trained.read(finished_run(*settings))
    backbone = trained.model.backbone
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    config, longest = backbone.model.config.to_dict(), backbone.tokenizer.model_max_length
    export(trained, "hf", tmp_path / "plain")
    after = backbone.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert backbone.model.config.to_dict() == config
    assert backbone.tokenizer.model_max_length == longest


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("prompt", "hf", "method 'prompt' cannot be merged into the backbone's weights"),
        ("houlsby", "hf", "--format hf: method 'houlsby' cannot be merged"),
        ("slash", "peft", "--format peft: peft has no adapter for method 'slash'; formats for "),
        ("linear", "peft", "formats for this run: hf, onnx, vector"),
    ],
)
def test_a_format_that_cannot_express_a_method_is_refused(
    tmp_path: Path, name: str, kind: Any, words: str
) -> None:
    trained = Trained.read(finished_run(*method(name, SMALL[name])))
    with pytest.raises(UserError) as caught:
        export(trained, kind, tmp_path / "out")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_export_targets_must_be_new_or_empty(tmp_path: Path) -> None:
    empty, full, file = tmp_path / "empty", tmp_path / "full", tmp_path / "full" / "file"
    empty.mkdir()
    full.mkdir()
    file.write_text("x")
    for kind in ("hf", "peft", "vector"):
        check_target(tmp_path / "new", kind)
        check_target(empty, kind)
    check_target(tmp_path / "new.safetensors", "vector")
    for path, kind, words in (
        (full, "hf", "the folder exists already"),
        (file, "peft", "the file exists already"),
        (file, "vector", "the file exists already"),
        (full, "vector", "the folder exists already"),
    ):
        with pytest.raises(UserError, match=f"{words}; choose another"):
            check_target(path, kind)
    assert default_target(full, "hf") == full / "export-hf"
    assert default_target(file, "vector") == full / "export-vector"


def test_an_export_goes_into_an_empty_folder_and_a_failed_one_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained.read(finished_run(*READINGS["cls"], *method("lora", SMALL["lora"])))
    out = tmp_path / "out"
    out.mkdir()

    # safetensors has an error of its own for a disk that is full.
    for error in (OSError(28, "No space left on device"), SafetensorError("Error while writing")):

        def fail(*_: object, error: Exception = error) -> str:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("fedpeft.export.plain.readme", fail)
            with pytest.raises(UserError, match="cannot be written"):
                export(trained, "hf", out)
        assert not list(out.iterdir()) and [each.name for each in tmp_path.iterdir()] == ["out"]
    export(trained, "hf", out)
    assert (out / "model.safetensors").is_file()
