"""Passes that start at the first changed block, against passes over all blocks."""

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

from fedpeft.modifications import Bottleneck, Modification, Shift
from fedpeft.modifications.encoder import Encoder, first_changed_block
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.tasks.base import Kind

FAMILIES = ["bert", "roberta"]
UPPER = [
    ("linear", {}),
    ("slash", {"d": 12, "layers": "1,2"}),
    ("slash", {"d": 12, "layers": "2"}),
    ("slash", {"d": 12, "layers": "1", "position": "attention"}),
]


@pytest.mark.parametrize("name", SMALL)
def test_first_changed_block_of_each_method(name: str) -> None:
    model = build_model(small_backbone("bert"), name)
    assert model.first_block == (3 if name == "linear" else 0)
    assert model.trains_head_only == (name == "linear")


@pytest.mark.parametrize(
    ("places", "first"),
    [
        ([], 3),
        ([("ffn_out", 2)], 2),
        ([("ffn_norm", 1), ("q", 2)], 1),
        ([("q", 0), ("q", 2)], 0),
        ([("embeddings", 0), ("ffn_out", 2)], 0),
    ],
)
def test_first_changed_block_of_places(places: list[tuple[str, int]], first: int) -> None:
    assert first_changed_block([shift(*place) for place in places], 3) == first


@pytest.mark.parametrize("way", ["padded", "packed", "examples"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "settings"), UPPER)
def test_gradients_from_the_first_changed_block(
    family: str, name: str, settings: dict[str, object], way: str
) -> None:
    model = build_model(small_backbone(family), name, **settings)
    assert model.first_block > 0
    batch = batch_of(model.backbone, 2, 3, packed=way == "packed")
    if family == "bert":
        batch = with_types(batch)
    # Other tokens change nothing: the states are all that is read of the texts.
    other = torch.zeros_like(batch.input_ids)
    resumed = replace(batch, states=model.states_below(batch), input_ids=other)
    vectors = random_vectors(model, 2)
    gradients = model.example_gradients if way == "examples" else model.gradients
    for result, expected in zip(
        gradients(vectors, resumed), gradients(vectors, batch), strict=True
    ):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["classes", "score"])
def test_a_head_on_texts_keeps_one_row_for_each_text(kind: Kind) -> None:
    model = build_model(small_backbone("bert"), "linear", 1, kind)
    batch = batch_of(model.backbone, 1, 4)
    assert model.states_below(batch).shape == (4, 1, 24)


def test_a_head_on_tokens_keeps_a_row_for_each_token() -> None:
    model = build_model(small_backbone("bert"), "linear", 9, "tags")
    batch = batch_of(model.backbone, 2, 3, task="synthetic/entities")
    states, vectors = model.states_below(batch), random_vectors(model, 2)
    assert states.shape == (*batch.input_ids.shape, 24)
    realised = model.realise(vectors)
    torch.testing.assert_close(
        model.outputs(realised, replace(batch, states=states)), model.outputs(realised, batch)
    )


def shift(site: str, layer: int) -> Modification:
    return Shift(site, layer, torch.full((1, 24), 0.3, dtype=torch.float64))


def adapter(site: str, layer: int, reads: str) -> Modification:
    draw = torch.Generator().manual_seed(layer)
    shapes = (1, 5, 24), (1, 5), (1, 24, 5), (1, 24)
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return Bottleneck(site, layer, *tensors, 1.0, "relu", reads=reads)


def prefix(layer: int) -> Modification:
    return KeyValuePrefix("kv", layer, *torch.ones(2, 1, 2, 24, dtype=torch.float64))


@pytest.mark.parametrize(
    "modifications",
    [
        [shift("attn_in", 1)],
        [shift("q", 1), shift("ffn_out", 2)],
        [prefix(2)],
        [shift("attn_out", 1), adapter("ffn_out", 1, "self")],
        [adapter("attn_out", 2, "input")],
        [adapter("ffn_sum", 1, "ffn_out")],
        [adapter("attn_norm", 1, "q")],
    ],
)
def test_hidden_states_from_the_first_changed_block(modifications: list[Modification]) -> None:
    backbone = small_backbone("bert")
    encoder, batch = Encoder(backbone), batch_of(backbone, 1, 4)
    first = first_changed_block(modifications, 3)
    assert first > 0
    expected, _ = encoder.run(modifications, batch)
    resumed = replace(batch, states=encoder.states_before(first, batch))
    states, _ = encoder.run(modifications, resumed, first)
    texts = batch.attention_mask.bool()
    torch.testing.assert_close(states[texts], expected[texts], rtol=0, atol=1e-12)
    assert not torch.allclose(encoder.states_before(3, batch)[texts], expected[texts])


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_nothing_is_kept_if_the_first_block_changes(name: str, settings: dict[str, object]) -> None:
    model = build_model(small_backbone("bert"), name, **settings)
    if model.first_block == 0:
        model.keep_states(1 << 30)
        assert model.kept.limit == 0
