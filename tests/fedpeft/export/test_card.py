"""The card of an export, read back as the hub reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finished import finished_run, made_up, small
from huggingface_hub import ModelCard

from fedpeft.export import export
from fedpeft.export.card import metadata, sections
from fedpeft.runs.trained import Trained
from fedpeft.runs.vectorfile import RESULT


@pytest.fixture(scope="module")
def private() -> Path:
    """The folder of a finished private run."""
    return finished_run("method.d=16", "privacy.unit=example", "privacy.noise_multiplier=1.0")


def loaded(tmp_path: Path, trained: Trained, kind: Any = "hf") -> ModelCard:
    export(trained, kind, tmp_path / "export")
    return ModelCard.load(tmp_path / "export" / "README.md")


def test_the_card_holds_every_metric_of_the_result(tmp_path: Path, private: Path) -> None:
    card = loaded(tmp_path, Trained.read(private))
    result = json.loads((private / RESULT).read_text())
    assert card.data.eval_results
    values = {entry.metric_name: entry.metric_value for entry in card.data.eval_results}
    assert values == {k: v for k, v in result["metrics"].items() if v is not None} != {}
    assert card.data.library_name == "transformers"
    assert {"fedpeft", "slash", "differential-privacy"} <= {*card.data.tags}
    assert "differential privacy" in card.text and "add or remove one example" in card.text


def test_the_privacy_statement_is_the_result_s(tmp_path: Path, private: Path) -> None:
    statement = json.loads((private / RESULT).read_text())["privacy"]["example"]
    text = loaded(tmp_path, Trained.read(private)).text
    assert f"noise multiplier {statement['noise_multiplier']:.4g}" in text
    assert f"{statement['steps']:,} steps" in text


def test_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    trained = Trained.read(made_up(tmp_path / "v", small("method.name=lora", "method.rank=2")))
    named = replace(trained, experiment=trained.experiment.model_copy(update={"backbone": "a/b-c"}))
    card = ModelCard(f"{metadata(named, 'peft')}\n")
    assert card.data.base_model == "a/b-c" and card.data.library_name == "peft"
    assert card.data.to_dict()["base_model_relation"] == "adapter"


@pytest.mark.parametrize("backbone", ["tiny", "/a/folder"])
def test_a_backbone_that_is_not_on_the_hub_is_not_named(tmp_path: Path, backbone: str) -> None:
    trained = Trained.read(made_up(tmp_path / "v", small("method.d=16")))
    changed = trained.experiment.model_copy(update={"backbone": backbone})
    card = ModelCard(f"{metadata(replace(trained, experiment=changed), 'hf')}\n")
    assert card.data.base_model is None and "base_model_relation" not in card.data.to_dict()


def test_data_of_the_hub_is_named(tmp_path: Path) -> None:
    trained = Trained.read(finished_run("method.d=16"))
    task = trained.experiment.task.model_copy(update={"name": "sst2"})
    on_glue = replace(trained, experiment=trained.experiment.model_copy(update={"task": task}))
    card = ModelCard(f"{metadata(on_glue, 'hf')}\n")
    assert card.data.datasets == ["nyu-mll/glue"] and card.data.eval_results
    assert {entry.dataset_config for entry in card.data.eval_results} == {"sst2"}


def test_a_vector_alone_promises_nothing(tmp_path: Path) -> None:
    private = small("method.d=16", "privacy.unit=example", "privacy.noise_multiplier=1.0")
    trained = Trained.read(made_up(tmp_path / "v", private))
    assert trained.result == {}
    assert "epsilon" not in sections(trained) and "result.json of the run" in sections(trained)
    assert "## Evaluation" not in sections(trained)


def test_the_result_of_another_vector_is_not_used(tmp_path: Path, private: Path) -> None:
    for name in ("experiment.toml", "vector.safetensors"):
        (tmp_path / name).write_bytes((private / name).read_bytes())
    result = json.loads((private / RESULT).read_text())
    result["digests"]["vector"] = "0" * 64
    (tmp_path / RESULT).write_text(json.dumps(result))
    assert Trained.read(tmp_path).result == {}
