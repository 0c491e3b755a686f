"""BitFit, full fine-tuning and SAID against copies of the encoder with changed weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod

import pytest
import torch
from literal import Params, at_text, both_batches, engine_states, fastfood_matrix
from models import build_model, random_vectors
from written_modules import BERT

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.backbones.loading import Backbone
from fedpeft.methods import build_method, settings_for
from fedpeft.methods.said import SAID
from fedpeft.model import TaskModel


def assert_same_as_a_copy(
    model: TaskModel, groups: int, changes: Callable[[Params], Params], scale: float = 0.3
) -> None:
    """Compare with copies whose weights get ``changes(params)`` of each group's parameters."""
    vectors = random_vectors(model, groups, scale)
    parameters = model.layout.unpack(vectors)
    others = []
    for group in range(groups):
        other = copy.deepcopy(model.backbone.model)
        params = {name: value[group] for name, value in parameters.items()}
        for name, change in changes(params).items():
            other.get_parameter(name).add_(change)
        others.append(other)
    for batch in both_batches(model, groups):
        parts = [
            other(
                input_ids=batch.input_ids[3 * group : 3 * group + 3],
                attention_mask=batch.attention_mask[3 * group : 3 * group + 3],
                token_type_ids=batch.token_type_ids[3 * group : 3 * group + 3],
            ).last_hidden_state
            for group, other in enumerate(others)
        ]
        expected = at_text(torch.cat(parts), batch.attention_mask)
        actual = engine_states(model, vectors, batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def test_bitfit_changes_every_bias(encoder: Backbone) -> None:
    def changes(params: Params) -> Params:
        added = {"embeddings.LayerNorm.bias": params["embed_norm"]}
        for layer in range(3):
            for site, path in BERT.items():
                added[f"encoder.layer.{layer}.{path}.bias"] = params[f"{layer}.{site}"]
        return added

    model = build_model(encoder, "bitfit")
    biases = {name for name, _ in encoder.model.named_parameters() if name.endswith("bias")}
    assert set(changes(dict(model.layout.unpack(torch.zeros(1, model.layout.size))))) == biases
    assert_same_as_a_copy(model, 2, changes)


def test_full_changes_every_weight(encoder: Backbone) -> None:
    model = build_model(encoder, "full")
    names = [name for name, _ in model.layout.entries if not name.startswith("head.")]
    assert sorted(names) == sorted(name for name, _ in encoder.model.named_parameters())
    assert_same_as_a_copy(model, 1, lambda params: {name: params[name] for name in names})


@pytest.mark.parametrize("d", [8, 12])
def test_said_changes_every_weight_along_fastfood(encoder: Backbone, d: int) -> None:
    """W_i + lambda_i reshape(P_i theta), columns of length 1, m = 4: embeddings, 3 blocks."""
    model = build_model(encoder, "said", d=d)
    method: SAID = model.method
    assert dict(model.layout.entries)["lambda"] == (4,)
    assert dict(model.layout.entries)["theta"] == (d - 4,)

    def changes(params: Params) -> Params:
        actual = {}
        for projection in method.projections():
            name = projection.name.removeprefix("said/")
            shape = encoder.model.get_parameter(name).shape
            assert projection.rows == prod(shape)
            layer = int(name.split(".")[2]) + 1 if name.startswith("encoder.layer.") else 0
            change = fastfood_matrix(projection) @ params["theta"] / prod(shape) ** 0.5
            actual[name] = params["lambda"][layer] * change.view(shape)
        assert set(actual) == {name for name, _ in encoder.model.named_parameters()}
        return actual

    assert_same_as_a_copy(model, 1, changes, scale=1.0)


def test_said_projections_have_columns_of_equal_length() -> None:
    """As in the paper's code: a step of theta moves small and large weights by the same length."""
    method = build_method(settings_for({"name": "said", "d": 130}), KNOWN_SHAPES["tiny"], seed=1)
    for projection in method.projections():
        if projection.rows >= 32 * 32:
            lengths = (fastfood_matrix(projection) ** 2).sum(0) / projection.rows
            assert (abs(lengths - 1) < 0.5).all(), projection.name


@pytest.mark.parametrize("name", ["full", "said"])
def test_methods_that_change_weights_refuse_several_vectors(tiny: Backbone, name: str) -> None:
    model = build_model(tiny, name)
    with pytest.raises(ValueError, match="one task vector, not 2"):
        model.realise(random_vectors(model, 2))
