"""Merging modifications into the weights gives the same states and restores the exact weights."""

from __future__ import annotations

import pytest
import torch
from literal import at_text, both_batches, engine_states
from models import VARIANTS, build_model, random_vectors
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.methods import method_class
from fedpeft.model import TaskModel
from fedpeft.modifications import NormChange, Shift
from fedpeft.modifications.fusing import fused, fused_changes

FUSABLE = [variant for variant in VARIANTS if method_class(variant[0]).fusable]
OTHERS = [variant for variant in VARIANTS if variant not in FUSABLE]


def plain_states(model: TaskModel, batch: Batch) -> Tensor:
    """Return the backbone's hidden states of a batch, without hooks."""
    hidden = model.backbone.model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        token_type_ids=batch.token_type_ids,
    ).last_hidden_state
    return at_text(hidden, batch.attention_mask)


@pytest.mark.parametrize(("name", "settings"), FUSABLE)
def test_fused_states_equal_unfused_states(encoder: Backbone, name: str, settings: dict) -> None:
    model = build_model(encoder, name, **settings)
    vectors = random_vectors(model, 1)
    changes = model.realise(vectors).modifications
    before = {key: value.clone() for key, value in encoder.model.state_dict().items()}
    for batch in both_batches(model, groups=1):
        expected = engine_states(model, vectors, batch)
        with fused(encoder.model, encoder.shape, changes):
            actual = plain_states(model, batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    after = encoder.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(("name", "settings"), FUSABLE)
def test_an_error_while_fused_restores_the_weights(
    small: Backbone, name: str, settings: dict
) -> None:
    model = build_model(small, name, **settings)
    changes = model.realise(random_vectors(model, 1)).modifications
    before = {key: value.clone() for key, value in small.model.state_dict().items()}
    with pytest.raises(ZeroDivisionError), fused(small.model, small.shape, changes):
        during = small.model.state_dict()
        assert not changes or any(not torch.equal(before[key], during[key]) for key in before)
        raise ZeroDivisionError
    after = small.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_layer_norm_change_can_be_fused(encoder: Backbone) -> None:
    """Compacter changes LayerNorms; its adapters cannot be fused."""
    model = build_model(encoder, "compacter", n=2, reduction=4, layer_norms=True)
    realised = model.realise(random_vectors(model, 1)).modifications
    changes = [change for change in realised if isinstance(change, NormChange)]
    assert len(changes) == 1 + 2 * 3
    for batch in both_batches(model, groups=1):
        hidden, _ = model.hidden_states(changes, batch)
        with fused(encoder.model, encoder.shape, changes):
            actual = plain_states(model, batch)
        expected = at_text(hidden, batch.attention_mask)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def test_changes_of_the_same_weight_add_up(small: Backbone) -> None:
    """A shift twice, and a low-rank change beside it."""
    shift = build_model(small, "slash")
    matrix = build_model(small, "lora", rank=2, sites="ffn")
    one, two = random_vectors(shift, 2)[:, None]
    changes = [
        *shift.realise(one).modifications,
        *shift.realise(two).modifications,
        *matrix.realise(random_vectors(matrix, 1)).modifications,
    ]
    total = fused_changes(small.shape, changes)
    expected = shift.realise(one + two).modifications[0].value[0]
    torch.testing.assert_close(total["encoder.layer.0.output.dense.bias"], expected)
    assert len(total) == 3 + 6


@pytest.mark.parametrize(("name", "settings"), OTHERS)
def test_fusing_names_a_modification_it_cannot_fuse(
    small: Backbone, name: str, settings: dict
) -> None:
    model = build_model(small, name, **settings)
    changes = model.realise(random_vectors(model, 1)).modifications
    kinds = "|".join({type(change).__name__ for change in changes})
    with pytest.raises(ValueError, match=f"({kinds}) is no change of the weights"):
        fused_changes(small.shape, changes)


def test_only_one_task_vector_can_be_fused(small: Backbone) -> None:
    model = build_model(small, "slash")
    changes = model.realise(random_vectors(model, 2)).modifications
    with pytest.raises(ValueError, match="expected one task vector to merge, got 2"):
        fused_changes(small.shape, changes)


def test_a_change_of_a_modules_input_cannot_be_fused(small: Backbone) -> None:
    change = Shift("heads", 0, torch.ones(1, small.shape.width))
    with pytest.raises(ValueError, match="Shift is no change of the weights"):
        fused_changes(small.shape, [change])
