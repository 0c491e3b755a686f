"""Passes that begin at the first change, against passes from the text on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from models import (
    SMALL,
    VARIANTS,
    batch_of,
    build_model,
    random_vectors,
    small_backbone,
    with_types,
)

from fedpeft.model import TaskModel
from fedpeft.modifications import Bottleneck, Modification, Shift
from fedpeft.modifications.hooks import run
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.modifications.resuming import Cut, below, first_change, resume

FAMILIES = ["bert", "roberta"]
#: Where the first change of a method is on three blocks; all others begin at the embeddings.
CUTS = {
    "linear": Cut("end", 3),
    "slash": Cut("ffn", 0),
    "houlsby": Cut("attention", 0),
    "pfeiffer": Cut("ffn", 0),
    "parallel_adapter": Cut("attention", 0),
    "scaled_parallel_adapter": Cut("attention", 0),
    "compacter": Cut("attention", 0),
}


@pytest.mark.parametrize("name", SMALL)
def test_where_the_first_change_is(name: str) -> None:
    assert build_model(small_backbone("bert"), name).cut == CUTS.get(name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_resumed_pass_gives_the_same_gradients(
    family: str, name: str, settings: dict[str, object]
) -> None:
    model = build_model(small_backbone(family), name, **settings)
    batch = with_types(batch_of(model.backbone, 2, 3)) if family == "bert" else None
    batch = batch or batch_of(model.backbone, 2, 3)
    if model.cut is None:
        with pytest.raises(ValueError, match="nothing is below"):
            model.below(batch)
        return
    vectors = random_vectors(model, 2)
    resumed = replace(batch, below=model.below(batch))
    # Other tokens in the batch now change nothing: what lies below is known.
    resumed = replace(resumed, input_ids=torch.zeros_like(batch.input_ids))
    for gradients in (model.gradients, model.example_gradients):
        for found, expected in zip(
            gradients(vectors, resumed), gradients(vectors, batch), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def adapter(site: str, layer: int, reads: str) -> Modification:
    draw = torch.Generator().manual_seed(layer)
    shapes = (1, 5, 24), (1, 5), (1, 24, 5), (1, 24)
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return Bottleneck(site, layer, *tensors, 1.0, "relu", reads=reads)


def shift(site: str, layer: int) -> Modification:
    return Shift(site, layer, torch.full((1, 24), 0.3, dtype=torch.float64))


def prefix(layer: int) -> Modification:
    return KeyValuePrefix("kv", layer, *torch.ones(2, 1, 2, 24, dtype=torch.float64))


@pytest.mark.parametrize(
    ("modifications", "cut"),
    [
        ([shift("ffn_out", 2)], Cut("ffn", 2)),
        ([shift("ffn_norm", 1), shift("q", 2)], Cut("ffn", 1)),
        ([shift("q", 1)], Cut("ffn", 0)),
        ([prefix(2)], Cut("ffn", 1)),
        ([prefix(0)], None),
        ([shift("heads", 0)], None),
        ([shift("attn_out", 1), adapter("ffn_out", 1, "self")], Cut("attention", 1)),
        ([adapter("ffn_out", 1, "attn_norm")], Cut("attention", 1)),
        ([adapter("ffn_sum", 1, "ffn_out")], Cut("ffn", 1)),
        ([adapter("attn_norm", 1, "q")], Cut("ffn", 0)),
        ([shift("embeddings", 0), shift("ffn_out", 2)], None),
        ([], Cut("end", 3)),
    ],
)
def test_any_place_can_be_the_first_change(
    modifications: list[Modification], cut: Cut | None
) -> None:
    assert first_change(modifications, 3) == cut
    model = build_model(small_backbone("bert"), "linear")
    batch = batch_of(model.backbone, 1, 4)
    if cut is not None and cut.place != "end":
        assert_same(model, modifications, cut, batch)


def test_the_input_of_an_output_layer_lies_below_it() -> None:
    reads_input = adapter("ffn_out", 1, "input")
    assert first_change([reads_input], 3) == Cut("attention", 1)
    assert first_change([replace(reads_input, site="attn_out")], 3) == Cut("ffn", 0)


def assert_same(
    model: TaskModel, modifications: list[Modification], cut: Cut, batch: object
) -> None:
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "token_type_ids": batch.token_type_ids,
    }
    encoder = model.backbone.model
    expected = run(encoder, "bert", modifications, **inputs)
    states = below(encoder, cut, **inputs)
    assert len(states) == cut.representations
    found = resume(encoder, "bert", modifications, cut, states, batch.attention_mask)
    kept = batch.attention_mask.bool()
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-12)
