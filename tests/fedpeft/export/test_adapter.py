"""Adapters predict what the run predicts, loaded by peft itself."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import READINGS, TEXTS, assert_predicts, examples_for, said_by_readme
from finished import finished_run, made_up, method, saved_backbone, small
from models import METHODS, SMALL
from scipy.special import softmax
from transformers import AutoModel

from fedpeft.backbones.checkpoints import checkpoint
from fedpeft.errors import UserError
from fedpeft.export import export
from fedpeft.export.obstacles import ADAPTERS
from fedpeft.export.plain import realise
from fedpeft.modifications import LowRank, ScaledLowRank
from fedpeft.predicting import predict
from fedpeft.trained import Trained

peft_warns = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


@peft_warns
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "settings",
    [
        {"name": "lora", "rank": 2, "sites": '["q","k","v","o","ffn"]', "alpha": 3.0},
        {"name": "lora", "rank": 2, "layers": "upper half"},
        {"name": "vera", "rank": 4},
        {"name": "uni_lora", "d": 12, "rank": 2},
    ],
    ids=lambda settings: str(settings["name"]),
)
def test_an_adapter_predicts_as_the_run(
    tmp_path: Path, reading: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = saved_backbone("tiny")
    values = [f"method.{key}={value}" for key, value in settings.items()]
    experiment = small(*READINGS[reading], f"backbone={base}", *values)
    trained = Trained.read(made_up(tmp_path / "vector", experiment, 0.3))
    export(trained, "peft", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == base
    chances = said_by_readme(tmp_path / "adapter", trained, monkeypatch)
    assert_predicts(chances, trained)


@peft_warns
@pytest.mark.parametrize(
    "head", [["head.d=5"], ["head.rank=1"], ["head.rank=1", "head.labels=true"]], ids=" ".join
)
@pytest.mark.parametrize("reading", ["cls", "mean-pair"])
def test_an_adapter_has_the_weights_of_every_head(
    tmp_path: Path, reading: str, head: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = saved_backbone("tiny")
    lora = ["method.name=lora", "method.rank=2"]
    experiment = small(*READINGS[reading], f"backbone={base}", *lora, *head)
    trained = Trained.read(made_up(tmp_path / "vector", experiment, 0.3))
    export(trained, "peft", tmp_path / "adapter")
    chances = said_by_readme(tmp_path / "adapter", trained, monkeypatch)
    assert_predicts(chances, trained)


#: MiniLM's tokenizer gives the second text of a pair a type of its own.
BERTS = [
    pytest.param("minilm", "lora", "mean-pair", marks=pytest.mark.long),
    *(("bert", name, reading) for name in ADAPTERS for reading in ("cls", "tags")),
]


@peft_warns
@pytest.mark.parametrize(("backbone", "name", "reading"), BERTS)
def test_an_adapter_of_a_bert_predicts_as_the_run(
    tmp_path: Path, backbone: str, name: str, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = backbone if backbone == "minilm" else saved_backbone(backbone)
    values = ["task.max_length=48", *READINGS[reading], *method(name, SMALL[name])]
    experiment = small(f"backbone={base}", *values)
    trained = Trained.read(made_up(tmp_path / "vector", experiment, 0.3))
    export(trained, "peft", tmp_path / "adapter")
    if backbone == "minilm":  # its files are here under another name than on the hub
        readme, here = tmp_path / "adapter" / "README.md", str(checkpoint("minilm"))
        code = readme.read_text().replace("'sentence-transformers/all-MiniLM-L6-v2'", repr(here))
        readme.write_text(code)
    chances = said_by_readme(tmp_path / "adapter", trained, monkeypatch)
    assert_predicts(chances, trained)


@peft_warns
@pytest.mark.parametrize("reading", ["cls", "mean-pair"])
def test_the_readme_loads_a_16_bit_base_in_float32(
    tmp_path: Path, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5 follows the precision of the base's files."""
    base = tmp_path / "base"
    shutil.copytree(saved_backbone("tiny"), base)
    AutoModel.from_pretrained(base).to(torch.float16).save_pretrained(base)
    assert AutoModel.from_pretrained(base).dtype == torch.float16
    experiment = small(*READINGS[reading], f"backbone={base}", *method("lora", SMALL["lora"]))
    trained = Trained.read(made_up(tmp_path / "vector", experiment, 0.3))
    export(trained, "peft", tmp_path / "adapter")
    assert_predicts(said_by_readme(tmp_path / "adapter", trained, monkeypatch), trained)


@peft_warns
def test_a_base_on_the_hub_is_named_by_its_hub_name(tmp_path: Path) -> None:
    settings = ("backbone=minilm", "representation=mean", *method("vera", {"rank": 4}))
    trained = Trained.read(made_up(tmp_path / "vector", small(*settings)))
    export(trained, "peft", tmp_path / "out")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    readme = (tmp_path / "out" / "README.md").read_text()
    assert config["base_model_name_or_path"] == name
    assert f"from_pretrained('{name}', dtype=torch.float32" in readme
    assert "peft 0.21 or newer: older ones draw VeRA's projections again" in readme


@pytest.mark.parametrize("form", ["int8", "bfloat16"])
def test_compact_weights_have_no_adapter(form: str, tmp_path: Path) -> None:
    settings = (f"engine.weights={form}", *method("lora", SMALL["lora"]))
    trained = Trained.read(made_up(tmp_path / "vector", small(*settings)))
    with pytest.raises(UserError, match=f"float32 checkpoint, and this run has {form} weights"):
        export(trained, "peft", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@peft_warns
def test_an_adapter_of_a_real_run_loads_by_pefts_own_class(tmp_path: Path) -> None:
    from peft import AutoPeftModelForSequenceClassification
    from transformers import AutoTokenizer

    base = saved_backbone("tiny")
    run = finished_run(*READINGS["cls"], f"backbone={base}", *method("lora", SMALL["lora"]))
    trained = Trained.read(run)
    export(trained, "peft", tmp_path / "adapter")
    model = AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter").eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path / "adapter")(
        TEXTS, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**inputs).logits.double().numpy()
    expected = predict(trained, examples_for(trained))
    chances = [list((each.probabilities or {}).values()) for each in expected]
    np.testing.assert_allclose(softmax(logits, axis=1), chances, atol=1e-5)


def test_the_methods_for_peft_are_those_of_low_rank_changes(tmp_path: Path) -> None:
    able = []
    for name in METHODS:
        path = made_up(tmp_path / name, small(*method(name, SMALL[name])), 0.0)
        changes = realise(Trained.read(path)).modifications
        if changes and all(isinstance(each, LowRank | ScaledLowRank) for each in changes):
            able.append(name)
    assert sorted(ADAPTERS) == able


def test_peft_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained.read(finished_run(*method("lora", SMALL["lora"])))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"--format peft needs peft; pip install 'fedpeft\[peft\]'"):
        export(trained, "peft", tmp_path / "out")
