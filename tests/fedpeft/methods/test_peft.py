"""LoRA, VeRA, Uni-LoRA and prefix tuning against peft with identical weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from literal import Params, at_text, both_batches, engine_states, positions
from models import build_model, random_vectors
from torch import Tensor
from torch.nn.functional import pad

from fedpeft.backbones.loading import Backbone
from fedpeft.model import TaskModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    # transformers 5.24 renames it to `cache`, which earlier versions do not have.
    pytest.mark.filterwarnings("ignore:.*past_key_values.* is deprecated:FutureWarning"),
]

#: Our sites as module names in a block.
MODULES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "attn_out": "attention.output.dense",
    "ffn_mid": "intermediate.dense",
    "ffn_out": "output.dense",
}
QV = ["query", "value"]


def with_peft(backbone: Backbone, config: Any) -> Any:
    """Return a copy of the encoder with peft's layers in float64 and transformers' attention."""
    from peft import get_peft_model

    other = copy.deepcopy(backbone.model)
    other.set_attn_implementation("sdpa")
    return get_peft_model(other, config).double().eval()


def layer_of(other: Any, layer: int, site: str) -> Any:
    """Return peft's layer that replaces a matrix."""
    return other.base_model.model.get_submodule(f"encoder.layer.{layer}.{MODULES[site]}")


def start(model: TaskModel) -> tuple[Tensor, Params]:
    """Return random parameters [1, P], and the same by name."""
    vectors = random_vectors(model, 1)
    return vectors, {name: value[0] for name, value in model.layout.unpack(vectors).items()}


def assert_same(model: TaskModel, vectors: Tensor, other: Any, prefix: Any = None) -> None:
    """Assert that both give the same states, with and without padding."""
    for batch in both_batches(model, groups=1):
        inputs = {
            "input_ids": batch.input_ids,
            "token_type_ids": batch.token_type_ids,
            "attention_mask": batch.attention_mask,
        }
        if prefix:  # peft counts a prefix among the positions; here they stay
            inputs["attention_mask"] = pad(batch.attention_mask, (3, 0), value=1)
            inputs["position_ids"] = positions(other.config, batch.input_ids)
            inputs["past_key_values"] = prefix(len(batch.read))
        expected = at_text(other(**inputs).last_hidden_state, batch.attention_mask)
        actual = engine_states(model, vectors, batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("sites", "targets", "changed"),
    [
        ("q,v", QV, ["q", "v"]),
        ("ffn", r".*layer\.\d\.(intermediate|output)\.dense", ["ffn_mid", "ffn_out"]),
        ("q,k,v,o,ffn", ["query", "key", "value", "dense"], list(MODULES)),
    ],
)
def test_lora_equals_peft(encoder: Backbone, sites: str, targets: Any, changed: list[str]) -> None:
    from peft import LoraConfig

    model = build_model(encoder, "lora", rank=2, alpha=6.0, sites=sites)
    assert list(model.method.sites) == changed
    vectors, params = start(model)
    other = with_peft(encoder, LoraConfig(r=2, lora_alpha=6, target_modules=targets))
    for name, value in params.items():
        if name.endswith(("A", "B")):
            layer, site, which = name.split(".")
            matrix = getattr(layer_of(other, int(layer), site), f"lora_{which}")["default"]
            matrix.weight.data = value
    assert_same(model, vectors, other)


def test_vera_equals_peft(encoder: Backbone) -> None:
    """Our A and B are uniform with variance 2 / inputs, as peft's Kaiming-uniform ones."""
    from peft import VeraConfig

    model = build_model(encoder, "vera", rank=5)
    vectors, params = start(model)
    other = with_peft(encoder, VeraConfig(r=5, target_modules=QV, save_projection=True))
    shared = (other.base_model.vera_A, other.base_model.vera_B)
    for reference, projection in zip(shared, model.method.projections(), strict=True):
        entries = torch.from_numpy(projection.transposed().T.copy()).double()
        assert reference["default"].shape == entries.shape
        reference["default"].copy_(entries * (2 / projection.columns) ** 0.5)
    for layer in range(3):
        for site in ("q", "v"):
            reference = layer_of(other, layer, site)
            reference.vera_lambda_d["default"].data = params[f"{layer}.{site}.d"]
            reference.vera_lambda_b["default"].data = params[f"{layer}.{site}.b"]
    assert_same(model, vectors, other)


def test_vera_matrices_have_the_distribution_of_peft() -> None:
    from peft.tuners.vera.model import _kaiming_init

    reference = _kaiming_init((64, 256), torch.Generator().manual_seed(0))
    assert reference.std() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    assert reference.abs().max() == pytest.approx((6 / 256) ** 0.5, rel=0.02)


def test_uni_lora_equals_peft(encoder: Backbone) -> None:
    pytest.importorskip("peft.tuners.unilora")
    from peft import UniLoraConfig

    model = build_model(encoder, "uni_lora", rank=2, d=40)
    vectors, params = start(model)
    other = with_peft(encoder, UniLoraConfig(r=2, theta_d_length=40, target_modules=QV))
    other.base_model.unilora_theta_d["default"].data = params["theta"]
    picked = torch.from_numpy(model.method.projections()[0].picked())
    scales = picked.bincount(minlength=40).double()[picked].rsqrt()
    places = [(layer, site, "AB"[i]) for layer in range(3) for site in ("q", "v") for i in (0, 1)]
    for layer, site, which in places:  # filled in this order
        reference = layer_of(other, layer, site)
        shape = (2, 24) if which == "A" else (24, 2)
        for part, values in (("indices", picked), ("scales", scales)):
            getattr(reference, f"unilora_{part}_{which}")["default"] = values[:48].view(shape)
        picked, scales = picked[48:], scales[48:]
    assert len(picked) == 0
    assert_same(model, vectors, other)


@pytest.mark.parametrize("hidden", [0, 5])
def test_prefix_equals_peft(encoder: Backbone, hidden: int) -> None:
    from peft import PrefixTuningConfig

    model = build_model(encoder, "prefix", length=3, hidden=hidden)
    vectors, params = start(model)
    config = PrefixTuningConfig(
        task_type="FEATURE_EXTRACTION",
        num_virtual_tokens=3,
        prefix_projection=bool(hidden),
        encoder_hidden_size=hidden or None,
    )
    other = with_peft(encoder, config)
    reference = list(other.prompt_encoder["default"].parameters())
    if hidden:
        names = ["embedding", "hidden.weight", "hidden.bias", "out.weight", "out.bias"]
        weights = [params[name] for name in names]
    else:
        blocks = [params[f"{i}.prefix_{kind}"] for i in range(3) for kind in ("keys", "values")]
        weights = [torch.cat(blocks, dim=1)]
    for weight, value in zip(reference, weights, strict=True):
        assert weight.shape == value.shape
        weight.data = value
    assert_same(model, vectors, other.get_base_model(), other.get_prompt)
