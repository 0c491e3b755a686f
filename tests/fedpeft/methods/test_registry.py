"""Properties of every method, with default and with other settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from literal import at_text, engine_states
from models import SMALL, VARIANTS, batch_of, build_model, part_of, random_vectors, with_types
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.methods import REGISTRY, method_class
from fedpeft.model import TaskModel
from fedpeft.modifications.hooks import applied
from fedpeft.wire.formats import decode, encode


def named(name: str, settings: dict[str, object]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in settings.items())])


Case = tuple[str, str, dict[str, object]]
#: Every variant on one family, and every method on the other, which has types of tokens.
CASES: list[Case] = [
    *(("bert", *variant) for variant in VARIANTS),
    *(("roberta", *variant) for variant in SMALL.items()),
]
SHARED = [case for case in CASES if method_class(case[1]).grouped]
#: What does not depend on the family.
ONE: list[Case] = CASES[: len(VARIANTS)]


def cases(chosen: list[Case]) -> pytest.MarkDecorator:
    """Run a test with each of these families, methods and settings."""
    ids = [f"{family} {named(name, settings)}" for family, name, settings in chosen]
    return pytest.mark.parametrize(
        ("small", "name", "settings"), chosen, ids=ids, indirect=["small"]
    )


def texts(model: TaskModel, groups: int, rows: int) -> Batch:
    batch = batch_of(model.backbone, groups, rows)
    return with_types(batch) if model.method.shape.types > 1 else batch


@cases(SHARED)
def test_groups_are_independent(small: Backbone, name: str, settings: dict) -> None:
    """Three task vectors in one padded batch give the outputs and gradients of three batches."""
    model = build_model(small, name, **settings)
    batch, vectors = texts(model, 3, 2), random_vectors(model, 3)
    outputs = model.outputs(model.realise(vectors), batch)
    gradients, losses = model.gradients(vectors, batch)
    for group in range(3):
        rows = slice(2 * group, 2 * group + 2)
        alone, vector = part_of(batch, rows.start, rows.stop), vectors[group : group + 1]
        expected = model.outputs(model.realise(vector), alone)
        torch.testing.assert_close(outputs[rows], expected, rtol=0, atol=1e-9)
        gradient, loss = model.gradients(vector, alone)
        torch.testing.assert_close(gradients[group], gradient[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(losses[group], loss[0], rtol=0, atol=1e-9)


@cases(SHARED)
def test_example_gradients_equal_those_of_single_examples(
    small: Backbone, name: str, settings: dict
) -> None:
    model = build_model(small, name, **settings)
    batch, vectors = texts(model, 2, 3), random_vectors(model, 2)
    actual, _ = model.example_gradients(vectors, batch)
    for row in range(6):
        vector = vectors[row // 3 : row // 3 + 1]
        (expected,), _ = model.gradients(vector, part_of(batch, row, row + 1))
        torch.testing.assert_close(actual[row], expected, rtol=1e-9, atol=1e-9)


def cannot_change(model: TaskModel, batch: Batch) -> Tensor:
    """Return the parameters [P] that no example of the batch depends on.

    A key's bias: softmax does not see what is added to all of its arguments. Embeddings of
    tokens and positions that are in no text.
    """
    config, longest = model.backbone.model.config, batch.input_ids.shape[1]
    first = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    used = {
        "embeddings.word_embeddings.weight": batch.input_ids[batch.attention_mask == 1],
        "embeddings.position_embeddings.weight": torch.arange(first, first + longest),
    }
    actual = []
    for name, shape in model.layout.entries:
        dead = torch.full(shape, name.endswith((".k", "self.key.bias")) or name in used)
        if name in used:
            dead[used[name]] = False
        actual.append(dead.flatten())
    return torch.cat(actual)


@cases(CASES)
def test_every_parameter_has_an_effect_and_the_backbone_is_unchanged(
    small: Backbone, name: str, settings: dict
) -> None:
    """Use four draws of the parameters: ReLU units may be dead in one of them."""
    before = {key: value.clone() for key, value in small.model.state_dict().items()}
    model = build_model(small, name, **settings)
    batch = texts(model, 1, 12)
    draws = [model.gradients(vector[None], batch)[0][0] for vector in random_vectors(model, 4)]
    largest = torch.stack(draws).abs().amax(0)
    dead = cannot_change(model, batch)
    assert (largest[~dead] > 1e-8).all()
    assert (largest[dead] < 1e-14).all()
    assert all(torch.equal(before[key], value) for key, value in small.model.state_dict().items())
    assert all(parameter.grad is None for parameter in small.model.parameters())


#: Methods that change nothing at the start; the template is in test_prompt.
IDENTITY = ["linear", "lora", "vera", "bitfit", "scaled_parallel_adapter", "said", "full"]


@cases(ONE)
def test_identity_at_the_start_for_methods_that_promise_it(
    small: Backbone, name: str, settings: dict
) -> None:
    model = build_model(small, name, **settings)
    batch = texts(model, 1, 4)
    arguments = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "token_type_ids": batch.token_type_ids,
    }
    plain = at_text(small.model(**arguments).last_hidden_state, batch.attention_mask)
    actual = engine_states(model, torch.from_numpy(model.parameters.initial(0))[None], batch)
    same = actual.shape == plain.shape and torch.equal(actual, plain)
    assert same == (name in IDENTITY or (name == "slash" and settings.get("init") == "zeros"))


@cases(ONE)
def test_declared_sites_and_fusable_match_the_modifications(
    small: Backbone, name: str, settings: dict
) -> None:
    method = (model := build_model(small, name, **settings)).method
    changes = model.realise(random_vectors(model, 1)).modifications
    assert {change.site for change in changes} == set(method.sites)
    assert len(set(method.sites)) == len(method.sites)
    assert method.fusable == all(c.weight_changes("module") is not None for c in changes)
    places = [*method.shape.sites.outer, *method.shape.sites.stacks[0].sites]
    known = [places.index(site) for site in method.sites if site in places]
    assert known == sorted(known), "sites in the order of a block"
    assert method.source and 0 < method.lr < 1


@cases(ONE)
def test_vector_survives_packing_and_unpacking(small: Backbone, name: str, settings: dict) -> None:
    model = build_model(small, name, **settings)
    vector = model.parameters.initial(0)
    assert vector.shape == (model.layout.size,) and vector.dtype == np.float64
    assert np.array_equal(vector, model.parameters.initial(0)) and np.isfinite(vector).all()
    sent = encode(vector, "float64")
    back = decode(sent, "float64", len(vector), "float64")
    assert np.array_equal(back, vector)
    rows = np.stack([vector, model.parameters.initial(1)])
    parts = model.layout.unpack(torch.from_numpy(rows))
    for row in range(2):
        named_parts = {key: value[row].numpy() for key, value in parts.items()}
        assert np.array_equal(model.layout.pack(named_parts), rows[row])


@pytest.mark.parametrize("name", REGISTRY)
def test_hooks_are_removed_after_an_error(small: Backbone, name: str) -> None:
    model = build_model(small, name)
    batch = texts(model, 1, 2)
    broken = replace(batch, input_ids=batch.input_ids + 10_000)  # behind the vocabulary
    with pytest.raises(IndexError):
        model.outputs(model.realise(random_vectors(model, 1)), broken)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in small.model.modules())


def test_hooks_are_removed_if_one_cannot_be_registered(small: Backbone) -> None:
    changes = build_model(small, "slash").realise(torch.zeros(1, 62).double()).modifications
    with (
        pytest.raises(KeyError),
        applied(small.model, small.shape, [*changes, replace(changes[0], site="x")]),
    ):
        pass
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in small.model.modules())
