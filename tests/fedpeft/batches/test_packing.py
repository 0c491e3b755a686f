"""Texts without their padding, against the same texts with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from models import GROUPED, SMALL, VARIANTS, batch_of, build_model, random_vectors, small_backbone
from pairs import UNLIKE_METHODS
from torch import Tensor

from fedpeft.backbones.attention import EAGER, SDPA
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.encoded import Encoded
from fedpeft.batches.packing import Packing

#: Every method with three clients; one client, and the mean of the states, do not depend on it.
MASKED = [
    *((name, values, "mask", 3 if name in GROUPED else 1) for name, values in VARIANTS),
    *((name, SMALL[name], "mask", 1) for name in UNLIKE_METHODS),
]
CASES = [
    *MASKED,
    *((name, SMALL[name], "mean", groups) for name in ("slash", "prefix") for groups in (1, 3)),
]


@pytest.mark.parametrize(("name", "values", "representation", "groups"), CASES)
def test_gradients_and_losses_are_those_of_padded_texts(
    name: str, values: dict[str, object], representation: str, groups: int
) -> None:
    model = build_model(small_backbone("roberta"), name, **values)
    batch = batch_of(model.backbone, groups, 5, representation, packed=True)
    assert batch.packing is not None
    vectors = random_vectors(model, groups)
    assert_padded(batch, lambda texts: model.gradients(vectors, texts))


@pytest.mark.parametrize(
    ("name", "values", "groups"),
    [
        (name, values, groups)
        for name, values, read, groups in CASES
        if read == "mask" and name in GROUPED
    ],
)
def test_gradients_of_examples_are_those_of_padded_texts(
    name: str, values: dict[str, object], groups: int
) -> None:
    model = build_model(small_backbone("roberta"), name, **values)
    batch = batch_of(model.backbone, groups, 5, packed=True)
    vectors = random_vectors(model, groups)
    assert_padded(batch, lambda texts: model.example_gradients(vectors, texts))


def assert_padded(batch: Batch, results: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
    """Compare the results of packed texts with those of the same texts with padding."""
    for one, other in zip(results(batch), results(replace(batch, packing=None)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["slash", "lora"])
def test_a_non_finite_client_changes_no_other(name: str) -> None:
    model = build_model(small_backbone("roberta"), name)
    batch, vectors = batch_of(model.backbone, 2, 4, packed=True), random_vectors(model, 2)
    vectors[0] = float("nan")
    gradients, losses = model.gradients(vectors, batch)
    assert losses.isfinite().tolist() == [False, True]
    assert gradients.isfinite().all(1).tolist() == [False, True]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["slash", "lora"])
def test_non_finite_states_change_no_other_example(name: str, packed: bool) -> None:
    model = build_model(small_backbone("roberta"), name, **{**SMALL[name], "layers": "1"})
    batch = batch_of(model.backbone, 1, 6)
    states = model.states_below(batch).clone()
    states[0] = float("inf")
    lengths = batch.attention_mask.sum(1)
    texts = Encoded(
        batch.input_ids[batch.attention_mask.bool()].numpy().astype(np.int32),
        np.zeros(int(lengths.sum()), dtype=np.uint8),
        np.concatenate([[0], lengths.cumsum(0).numpy()]),
        batch.read.numpy().astype(np.int32),
        batch.labels.numpy(),
        states=states[batch.attention_mask.bool()],
    )
    pad_id = model.backbone.tokenizer.pad_token_id
    ready = collate([texts], [np.arange(6)], pad_id, "cpu", torch.float64, packed)
    assert (ready.packing is not None) is packed
    gradients, _ = model.example_gradients(random_vectors(model, 1), ready)
    assert gradients.isfinite().all(1).tolist() == [False] + 5 * [True]


@pytest.mark.parametrize("attention", [SDPA, EAGER])
def test_padding_does_not_pass_through_the_backbone(attention: str) -> None:
    model = build_model(small_backbone("bert"), "lora")
    batch, seen = batch_of(model.backbone, 1, 6, packed=True), []
    module = model.backbone.model.encoder.layer[1].intermediate
    handle = module.register_forward_hook(lambda _, given, out: seen.append(given[0].shape))
    try:
        model.backbone.model.set_attn_implementation(attention)
        model.gradients(random_vectors(model, 1), batch)
    finally:
        handle.remove()
        model.backbone.model.set_attn_implementation(SDPA)
    assert seen == [(1, int(batch.attention_mask.sum()), 24)]
    assert batch.attention_mask.numel() > batch.attention_mask.sum()


@pytest.mark.parametrize("name", ["prompt", "jr_warp"])
def test_methods_that_lengthen_texts_are_not_packed(name: str) -> None:
    model = build_model(small_backbone("bert"), name)
    assert not model.packs
    assert build_model(small_backbone("bert"), "full").packs


@given(
    lengths=some.lists(some.integers(1, 7), min_size=1, max_size=8),
    groups=some.sampled_from([1, 2, 4]),
)
@settings(max_examples=100, deadline=None)
def test_unpack_undoes_pack_and_gradients_follow(lengths: list[int], groups: int) -> None:
    lengths = lengths * groups
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    packing = Packing.of(mask, groups, "cpu", torch.float64)
    most = max(int(group.sum()) for group in np.split(mask, groups))
    if most == mask.size // groups:
        assert packing is None
        return
    padded = torch.arange(1.0, mask.size + 1, dtype=torch.float64).view(*mask.shape, 1)
    padded.requires_grad_()
    rows = packing.pack(padded)
    assert rows.shape == (groups, most, 1)
    back, texts = packing.unpack(rows), torch.from_numpy(mask)
    assert torch.equal(back[texts], padded[texts])
    (gradient,) = torch.autograd.grad((back[texts] ** 2).sum(), padded)
    assert torch.equal(gradient[texts], 2 * padded.detach()[texts])
    assert not gradient[~texts].any()
