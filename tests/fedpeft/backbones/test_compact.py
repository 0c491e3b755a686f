"""Compact frozen weights, against float32 models whose weights have the same values."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import GROUPED, batch_of, build_model, random_vectors
from pairs import covering, fitting
from small_families import CONFIGS, WRITING, small_family, small_language
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from written_texts import text_batch, text_model

from fedpeft.backbones import rounding
from fedpeft.backbones.compact import CompactLinear, compact, weight_bytes
from fedpeft.backbones.language import base_of
from fedpeft.backbones.loading import Backbone, in_float32, load_backbone
from fedpeft.backbones.rounding import FourBit, Rows
from fedpeft.batches.batch import Batch
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.model import TaskModel

CPU = torch.device("cpu")
with_bitsandbytes = pytest.mark.skipif(
    not find_spec("bitsandbytes"), reason="the package bitsandbytes is not installed"
)
COMPACT = covering(
    fitting(CONFIGS, ["slash", "lora", "prefix", "bitfit"]),
    families=["deberta", "deberta-v2"],  # lack the two methods
    names=["lora", "prefix"],
)


def held(backbone: Backbone, form: str) -> Backbone:
    """Return a float32 copy of a small backbone with compact weights."""
    language = backbone.language
    model = copy.deepcopy(backbone.model if language is None else language).float()
    compact(model, form, CPU)
    if language is None:
        return replace(backbone, model=model, weights=form)
    return replace(backbone, model=base_of(model), language=model, weights=form)


def single(batch: Batch) -> Batch:
    """Return a batch for a float32 model."""
    return replace(batch, weights=batch.weights.float())


def assert_equal_gradients(model: TaskModel, batch: Batch, per_example: bool = False) -> None:
    """Compare losses and gradients with those of the dequantized weights in float32."""
    vectors = random_vectors(model, groups=2).float()
    whole = model.in_float32()
    assert whole.backbone.weights == "float32" and whole is not model
    name = "example_gradients" if per_example else "gradients"
    for actual, expected in zip(
        *(getattr(each, name)(vectors, single(batch)) for each in (model, whole)), strict=True
    ):
        assert actual.dtype == torch.float32
        assert expected.abs().sum() > 0
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("family", "name"), COMPACT)
def test_gradients_are_those_of_the_dequantized_weights(family: str, name: str) -> None:
    model = build_model(held(small_family(family), "int8"), name)
    assert_equal_gradients(model, batch_of(model.backbone, 2, 2))


@with_bitsandbytes
@pytest.mark.parametrize("family", ["bert", "gpt2"])  # GPT-2's matrices are transposed
def test_gradients_are_those_of_weights_of_4_bits(family: str) -> None:
    model = build_model(held(small_family(family), "int4"), "lora")
    assert_equal_gradients(model, batch_of(model.backbone, 2, 2))


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_every_method_and_single_examples_on_tiny(name: str, per_example: bool) -> None:
    model = build_model(load_backbone("tiny", "cpu", weights="int8"), name)
    batch = batch_of(model.backbone, 2, 2, packed=model.packs and not per_example)
    assert_equal_gradients(model, batch, per_example)


@pytest.mark.parametrize("family", WRITING)
def test_gradients_of_texts(family: str) -> None:
    model = text_model(held(small_language(family), "int8"), "lora")
    assert_equal_gradients(model, text_batch(model.backbone, [0, 1], [2, 3]), per_example=True)


@pytest.mark.parametrize("family", [name for name in CONFIGS if name != "deberta"])
def test_bfloat16_is_close_to_float32(family: str) -> None:
    """DeBERTa's code adds a number to its scores that bfloat16 cannot hold, also in autocast."""
    backbone = held(small_family(family), "bfloat16")
    method = "lora" if small_family(family).shape.sites.attends else "slash"
    model = build_model(backbone, method)
    whole, batch = model.in_float32(), single(batch_of(backbone, 2, 2))
    vectors = 0.1 * random_vectors(model, 2).float()
    (rough, loss), (exact, expected) = (m.gradients(vectors, batch) for m in (model, whole))
    assert rough.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)
    assert torch.cosine_similarity(rough, exact).min() > 0.97


def test_bfloat16_multiplies_as_autocast_does() -> None:
    model = build_model(load_backbone("tiny", "cpu", weights="bfloat16"), "slash")
    plain = build_model(in_float32(model.backbone), "slash")
    lowered = TaskModel(plain.backbone, plain.parameters, autocast="bfloat16")
    vectors, batch = random_vectors(model, 2).float(), single(batch_of(model.backbone, 2, 2))
    for actual, expected in zip(
        *(each.gradients(vectors, batch) for each in (model, lowered)), strict=True
    ):
        assert torch.equal(actual, expected)


@given(
    st.integers(1, 9), st.integers(1, 300), st.floats(1e-20, 1e20), st.integers(0, 2**31), st.data()
)
@settings(max_examples=50, deadline=None)
def test_rounding_to_8_bits(
    rows: int, columns: int, size: float, seed: int, data: st.DataObject
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(rows, columns, generator=draw)
    weight[data.draw(st.integers(0, rows - 1))] = 0.0
    stored = Rows.rounded(weight)
    (restored,) = stored.pieces(torch.float32)
    most = weight.abs().amax(1, keepdim=True)
    assert torch.all((restored - weight).abs() <= most / 254 * (1 + 1e-5))  # half a level
    torch.testing.assert_close(restored.abs().amax(1, keepdim=True), most, rtol=1e-6, atol=0)
    assert stored.nbytes == rows * (columns + 4)


@with_bitsandbytes
def test_rounding_to_4_bits() -> None:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    stored = FourBit.rounded(weight)
    (restored,) = stored.pieces(torch.float32)
    assert stored.nbytes == 96 * 64 // 2 + 96 * 4  # half a byte each, a float32 for each 64
    # The widest gap between levels of NormalFloat is 0.304 of a block's largest magnitude.
    assert torch.all((restored - weight).abs() <= weight.abs().amax(1, keepdim=True) * 0.153)


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_weights_in_pieces(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = kind(24, 40) if kind is nn.Linear else kind(40, 24)
    weight = layer.weight.detach().clone()
    parent = nn.ModuleDict({"layer": layer})
    parent.get_output_embeddings = lambda: None  # type: ignore[assignment]
    compact(parent, "int8", CPU)
    whole = parent["layer"].stored
    inputs = torch.randn(2, 3, 24, requires_grad=True)
    monkeypatch.setattr(rounding, "PIECE", 24 * 7)  # 40 rows in six pieces
    assert len([*whole.pieces(torch.float32)]) == 6
    output = parent["layer"](inputs)
    cotangent = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, inputs, cotangent)
    restored = parent["layer"].weight
    bias = layer.bias if layer.bias is not None else 0
    torch.testing.assert_close(output, inputs @ restored.T + bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, cotangent @ restored, rtol=1e-5, atol=1e-5)
    original = weight if kind is nn.Linear else weight.T
    assert (restored - original).abs().max() <= original.abs().max() / 254


def test_a_pass_keeps_no_float32_weights() -> None:
    backbone = held(small_family("bert"), "int8")
    layer = backbone.model.encoder.layer[0].intermediate.dense
    assert isinstance(layer, CompactLinear)
    saved: list[Tensor] = []
    inputs = torch.randn(1, 24, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (saved.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        layer(inputs)
    assert not saved


@pytest.mark.parametrize("family", WRITING)
def test_shared_embeddings_are_stored_once(family: str) -> None:
    backbone = small_language(family)
    tied = backbone.language.get_output_embeddings().weight  # type: ignore[union-attr, operator]
    shared = any(p is tied for p in backbone.model.parameters())
    compacted = held(backbone, "int8")
    output = compacted.language.get_output_embeddings()  # type: ignore[union-attr, operator]
    tables = [m.stored for m in compacted.model.modules() if hasattr(m, "stored")]
    assert any(table is output.stored for table in tables) == shared
    back = in_float32(compacted)
    restored = back.language.get_output_embeddings().weight  # type: ignore[union-attr, operator]
    assert any(p is restored for p in back.model.parameters()) == shared


@pytest.mark.long
def test_bytes_of_weights() -> None:
    sizes = {
        form: weight_bytes(load_backbone("minilm", "cpu", weights=form).model)
        for form in ("float32", "bfloat16", "int8")
    }
    numbers = sum(p.numel() for p in load_backbone("minilm", "cpu").model.parameters())
    assert sizes["float32"] == pytest.approx(4 * numbers, rel=1e-3)  # and the position ids
    assert sizes["bfloat16"] == pytest.approx(2 * numbers, rel=0.01)
    assert sizes["int8"] == pytest.approx(numbers, rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_no_weight_keeps_the_file_in_memory(form: str) -> None:
    model = load_backbone("minilm", "cpu", weights=form).model
    for tensor in (*model.parameters(), *model.buffers()):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_the_fingerprint_is_that_of_the_float32_weights() -> None:
    tiny = load_backbone("tiny", "cpu")
    assert load_backbone("tiny", "cpu", weights="int8").fingerprint == tiny.fingerprint


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(
        UserError, match=r"'int4': needs bitsandbytes; pip install 'fedpeft\[int4\]"
    ):
        load_backbone("tiny", "cpu", weights="int4")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["method.name=full"], "method 'full' changes whole weights; leave it out"),
        (["method.name=said"], "method 'said' changes whole weights; leave it out"),
        (["engine.dtype=float64"], "expected engine.dtype = 'float32'"),
    ],
)
def test_contradictions(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Experiment.load("", ["engine.weights=int8", *overrides])
    with pytest.raises(UserError, match="sets it to 'bfloat16'"):
        Experiment.load("", ["engine.weights=bfloat16", "engine.autocast=float16"])


def test_a_backbone_from_disk(tmp_path: Path) -> None:
    small = small_language("gpt2")
    language = copy.deepcopy(small.language).float()
    language.set_attn_implementation("sdpa")  # type: ignore[union-attr]
    language.save_pretrained(tmp_path)  # type: ignore[union-attr]
    small.tokenizer.save_pretrained(tmp_path)
    loaded = load_backbone(str(tmp_path), "cpu", "float32", True, "int8")
    torch.testing.assert_close(
        loaded.model.h[0].mlp.c_fc.weight, held(small, "int8").model.h[0].mlp.c_fc.weight
    )
