"""Loading a checkpoint of every family from a folder, and federated training on some."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_families import CONFIGS, small_family

import fedpeft
from fedpeft.backbones.checkpoints import backbone_shape
from fedpeft.backbones.loading import load_backbone
from fedpeft.errors import UserError


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the float32 weights and the tokenizer of a small family."""
    backbone = small_family(request.param)
    model: Any = copy.deepcopy(backbone.model).float()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path / "model")
    backbone.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("folder", CONFIGS, indirect=True, ids=str)
def test_every_family_loads_from_a_folder(folder: Path, request: pytest.FixtureRequest) -> None:
    family = request.node.callspec.params["folder"]
    backbone, small = load_backbone(str(folder), "cpu"), small_family(family)
    assert backbone.shape == small.shape == backbone_shape(str(folder))
    assert backbone.shape.weights == small.shape.weights
    weights = dict(backbone.model.named_parameters())
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == small.shape.weights
    for name, weight in small.model.named_parameters():
        assert torch.equal(weights[name], weight.float())


EXPERIMENT = {
    "method.d": 16,
    "task.train_limit": 40,
    "task.eval_limit": 20,
    "task.max_length": 40,
    "federation.clients": 2,
    "federation.rounds": 1,
    "engine.device": "cpu",
    "output.plots": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["modernbert", "gpt2", "qwen2", "bart", "t5"], indirect=True)
def test_a_federation_trains(folder: Path, tmp_path: Path) -> None:
    """Private, so that gradients of single examples pass through the whole engine."""
    experiment = {**EXPERIMENT, "backbone": str(folder), "representation": "last"}
    private = {"privacy.unit": "example", "privacy.noise_multiplier": 1.0}
    result = fedpeft.simulate({**experiment, **private, "privacy.delta": 1e-3}, tmp_path / "run")
    assert 0 <= result.score <= 100
    assert len(result.vector) == 16 + 2 * 24 + 2


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_settings_that_do_not_fit_a_decoder_are_refused(folder: Path, tmp_path: Path) -> None:
    experiment = {**EXPERIMENT, "backbone": str(folder)}
    with pytest.raises(UserError, match="'cls': the first token of a gpt2 backbone does not see"):
        fedpeft.simulate({**experiment, "representation": "cls"}, tmp_path / "a")
    experiment = {**experiment, "representation": "last"}
    private = {"privacy.unit": "example", "privacy.noise_multiplier": 1.0}
    del experiment["method.d"]
    with pytest.raises(UserError, match=r"privacy.unit = 'example'.*weights of a gpt2 backbone"):
        fedpeft.simulate({**experiment, **private, "method.name": "full"}, tmp_path / "b")
    # The prompt takes positions.
    long = {"method.name": "prompt", "method.length": 32, "task.max_length": 39}
    with pytest.raises(UserError, match=r"reads at most 38 tokens of a text with this method"):
        fedpeft.simulate({**experiment, **long}, tmp_path / "c")
