"""Weights in low precision, converted once: the numbers that autocast computes with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpeft.backbones.hardware import choose_autocast, emulated
from fedpeft.backbones.loading import load_backbone
from fedpeft.backbones.lowered import lowered
from fedpeft.modifications.encoder import Encoder
from tests.fedpeft.models import batch_of, build_model, random_vectors, task_model


def test_only_linear_layers_are_converted_and_the_rest_is_shared() -> None:
    backbone = load_backbone("tiny", "cpu", "float32")
    model, copied = backbone.model, lowered(backbone, torch.bfloat16)
    assert copied is lowered(backbone, torch.bfloat16)
    assert copied.config is model.config
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    before = dict(model.named_parameters())
    for name, weight in copied.named_parameters():
        if name.rpartition(".")[0] in layers:
            assert weight.dtype == torch.bfloat16
            assert torch.equal(weight, before[name].bfloat16())
            assert before[name].dtype == torch.float32
        else:
            assert weight is before[name]
        assert not weight.requires_grad


def test_an_evaluation_that_comes_first_leaves_weights_that_training_can_use() -> None:
    single = load_backbone("tiny", "cpu", "float32")
    lowered.cache_clear()
    built = build_model(single, "slash", d="max")
    model = task_model(single, built.method, built.head, autocast="bfloat16")
    vectors, batch = random_vectors(built, 1, 0.1).float(), batch_of(single, 1, 4)
    with torch.inference_mode():
        model.outputs(model.realise(vectors), batch)
    gradients, _ = model.gradients(vectors, batch)
    assert torch.isfinite(gradients).all() and gradients.abs().sum() > 0


def test_results_equal_those_of_autocast_to_the_bit() -> None:
    single = load_backbone("tiny", "cpu", "float32")
    exact = build_model(single, "slash", d="max")
    coarse = task_model(single, exact.method, exact.head, autocast="bfloat16")
    again = task_model(single, exact.method, exact.head, autocast="bfloat16")
    again._encoder.__dict__["_model"] = single.model  # autocast converts the weights in each pass
    vectors, batch = random_vectors(exact, 2, 0.1).float(), batch_of(single, 2, 4)
    actual, expected = (model.gradients(vectors, batch) for model in (coarse, again))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def test_float32_uses_the_model_itself() -> None:
    backbone = load_backbone("tiny", "cpu", "float32")
    assert Encoder(backbone)._model is backbone.model


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bfloat16_where_the_hardware_multiplies_it(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": native}, raising=False
    )
    cpu = torch.device("cpu")
    expected = "bfloat16" if native else "off"
    assert choose_autocast("auto", cpu, torch.float32) == expected
    assert choose_autocast("auto", cpu, torch.float64) == "off"
    assert choose_autocast("off", cpu, torch.float32) == "off"
    assert choose_autocast("float16", cpu, torch.float32) == "float16"
    assert choose_autocast("off", cpu, torch.float32, "bfloat16") == "bfloat16"
    warning = "" if native else "warning: this CPU emulates bfloat16"
    assert emulated("bfloat16", cpu).startswith(warning) and emulated("off", cpu) == ""
    assert bool(emulated("bfloat16", cpu)) != native
