"""Federated runs of classes by likelihood: metrics, predictions, exports, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_runs import saved

import fedpeft
from fedpeft.attacks.audit import subject_of
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.export import export
from fedpeft.predicting import predict, read_texts
from fedpeft.runtime import Runtime
from fedpeft.serving.catalog import open_catalog
from fedpeft.trained import Trained

PRIVATE = {"privacy.unit": "example", "privacy.noise_multiplier": 0.5, "privacy.delta": 1e-3}

#: peft uses names that transformers deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


def settings(family: str, tmp_path: Path, **more: object) -> dict[str, object]:
    return {
        "backbone": str(saved(family, tmp_path / "model")),
        "task.name": "synthetic/sentiment",
        "task.train_limit": 96,
        "task.eval_limit": 32,
        "task.prompt": "{source} it was",
        "task.max_length": 40,
        "head.kind": "likelihood",
        "head.words": "bad,great",
        "method.name": "lora",
        "method.rank": 2,
        "local.lr": 0.01,
        "federation.clients": 2,
        "federation.rounds": 2,
        "engine.device": "cpu",
        "output.plots": False,
        **more,
    }


def result_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_a_federation_trains(family: str, private: dict[str, object], tmp_path: Path) -> None:
    fedpeft.simulate(settings(family, tmp_path, **private), tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["metric"] == "accuracy" and result["head_size"] == 0
    assert {*result["metrics"]} == {"accuracy", "f1", "matthews"}
    assert (result["epsilon"] is not None) == bool(private)
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    if not private:
        assert rounds[1]["eval_loss"] < rounds[0]["eval_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart", "mbart", "t5"])
def test_a_run_predicts_and_its_export_has_the_same_logits(family: str, tmp_path: Path) -> None:
    """The exported model is used as its README says, with transformers alone."""
    pairs = {
        "task.name": "synthetic/inference",
        "task.prompt": "{source}? {pair} it was",
        "head.words": "good,bad,fun",
        "federation.rounds": 1,
    }
    fedpeft.simulate(settings(family, tmp_path, **pairs), tmp_path / "run")
    trained = Trained.read(tmp_path / "run")
    rows = [{"text": "the film was good", "text_pair": "it was {source}"}] * 2
    rows += [{"text": "bad", "text_pair": "great fun and a very good film"}]
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predictions = predict(trained, read_texts(trained, file))
    assert {prediction.value for prediction in predictions} <= {*trained.labels}

    export(trained, "vector", tmp_path / "v.safetensors")
    again = Trained.read(tmp_path / "v.safetensors")
    assert predict(again, read_texts(again, file)) == predictions
    with pytest.raises(UserError, match="--format onnx: its graph has no output embeddings"):
        export(trained, "onnx", tmp_path / "onnx")
    with pytest.raises(UserError, match=r"a run with head\.kind = 'likelihood' is not served"):
        open_catalog(tmp_path / "run", 5).add("run", tmp_path / "run")

    for kind in ("hf", "peft"):
        export(trained, kind, tmp_path / kind)  # type: ignore[arg-type]
        card = (tmp_path / kind / "README.md").read_text()
        code = card.split("```python\n")[1].split("```")[0]
        assert "fedpeft" not in code.replace(str(tmp_path), "")
        names: dict[str, Any] = {}
        exec(code.replace('"."', repr(str(tmp_path / kind))), names)
        for row, prediction in zip(rows, predictions, strict=True):
            expected = torch.softmax(names["outputs"](row["text"], row["text_pair"]).double(), 0)
            assert isinstance(prediction.probabilities, dict)
            actual = [prediction.probabilities[label] for label in trained.labels]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_clients_evaluate_as_the_server_does(tmp_path: Path) -> None:
    chosen = settings("gpt2", tmp_path, **{"federation.rounds": 1})
    fedpeft.simulate(chosen, tmp_path / "a")
    fedpeft.simulate({**chosen, "federation.evaluation": "clients"}, tmp_path / "b")
    first, second = (result_of(tmp_path / name)["metrics"] for name in "ab")
    assert first == pytest.approx(second, rel=1e-6)


MISTAKES: list[tuple[dict[str, object], str]] = [
    (
        {"backbone": "tiny"},
        "backbone = 'tiny': a roberta model is an encoder and writes no text; task.kind",
    ),
    ({"method.name": "linear"}, "method.name = 'linear': trains only a head, and there is none"),
    ({"task.max_length": 71}, "reads at most 70 tokens of a text with this method"),
    ({"head.words": "good film,good fun"}, "'good film' and 'good fun' share their first token"),
    ({"head.words": "good,\u2603"}, "the backbone's tokenizer has no token for '\u2603'"),
    ({"head.words": "a,b,c"}, "3 words; expected 2, one for each of the classes negative"),
    ({"task.prompt": "{source} {pair}"}, "'synthetic/sentiment' has no second texts; leave out"),
    ({"task.prompt": "no"}, "task.prompt = 'no': expected {source} in it exactly once"),
    ({"task.prompt": "{source}{pair}{pair}"}, "expected {pair} in it at most once"),
    ({"task.name": "synthetic/inference", "head.words": "a,b,c"}, "has pairs of texts; expected"),
    ({"task.name": "synthetic/similarity"}, "task 'synthetic/similarity' has a score; expected"),
    (
        {"task.name": "synthetic/entities"},
        "task 'synthetic/entities' has tags; expected a task with",
    ),
    ({"task.name": "custom", "task.kind": "score"}, "is for classes, not task.kind = 'score'"),
    ({"task.beams": 2}, "task.beams = 2: is for task.kind = 'text', not 'classes'"),
    ({"head.d": 3}, "head.d = 3: head.kind = 'likelihood' trains no head; leave it out"),
    ({"head.steepness": 2}, "head.steepness = 2.0: head.kind = 'likelihood' trains no head"),
    ({"head.labels": False}, "head.labels = False: head.kind = 'likelihood' trains no head"),
    ({"head.kind": "linear"}, "task.prompt = '{source} it was': is for task.kind = 'text'"),
    (
        {"head.kind": "linear", "task.prompt": "{source}"},
        "head.words = 'bad,great': is for head.kind = 'likelihood', not 'linear'",
    ),
    ({"head.kind": "likelyhood"}, "head.kind = 'likelyhood'"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_a_mistake_is_one_line(change: dict[str, object], message: str, tmp_path: Path) -> None:
    values = {**settings("gpt2", tmp_path), **change}
    if values["method.name"] != "lora":
        del values["method.rank"]
    with pytest.raises(UserError) as caught:
        fedpeft.simulate(values, tmp_path / "run")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_audit_is_refused(tmp_path: Path) -> None:
    values = settings("gpt2", tmp_path)
    runtime = Runtime(Experiment.load("", [f"{key}={value}" for key, value in values.items()]))
    with pytest.raises(UserError, match="the audit's texts have no prompt; expected 'linear'"):
        subject_of(runtime, np.arange(20), None, None)


def test_backbones_with_and_without_output_embeddings_are_not_confused(tmp_path: Path) -> None:
    """The same folder serves a linear head, too, whose fingerprint is another."""
    values = settings("gpt2", tmp_path)
    likelihood = Experiment.load("", [f"{key}={value}" for key, value in values.items()])
    left = {key: values[key] for key in values if key[:4] != "head" and key != "task.prompt"}
    linear = Experiment.load("", [f"{key}={value}" for key, value in left.items()])
    first, second = Runtime(likelihood), Runtime(linear)
    assert first.backbone.language is not None and second.backbone.language is None
    assert first.identity["backbone"] != second.identity["backbone"]
    assert first.parameters.layout.size < second.parameters.layout.size
