"""Every method on every family against equations, single examples and single clients.

The families' tables of sites are not read: ``written`` and ``equations`` have names of their own.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from equations import WRITTEN, changed_weights
from literal import at_text, both_batches
from models import GROUPED, METHODS, SMALL, build_model, part_of, random_vectors
from pairs import covering
from small_families import CONFIGS, small_family, tolerance
from torch import Tensor
from written import written_states

from fedpeft.backbones.families import FAMILIES
from fedpeft.batches.batch import Batch
from fedpeft.errors import UserError
from fedpeft.model import TaskModel

#: Methods that a family refuses, by the site that it lacks.
PRE_NORM = {"pfeiffer": "ffn_sum"}
NO_BIAS = {**PRE_NORM, "bitfit": "no biases"}
NO_INTERFACE = {"prefix": "kv", "mam": "kv"}
NO_MATRICES = dict.fromkeys(("lora", "vera", "uni_lora", "multihead_parallel_adapter"), "'q'")
DEBERTA = {
    **NO_INTERFACE,
    **NO_MATRICES,
    "prompt": "embeddings",
    "jr_warp": "embeddings",
    "bitfit": "reaches",
}
REFUSED: dict[str, dict[str, str]] = {
    "modernbert": NO_BIAS,
    "mpnet": NO_INTERFACE,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA,
    "gpt2": PRE_NORM,
    **dict.fromkeys(("llama", "qwen3", "mistral", "t5", "t5-gated"), NO_BIAS),
    "qwen2": PRE_NORM,
    "mbart": PRE_NORM,
}
PAIRS = [(family, name) for family in CONFIGS for name in METHODS]
WORKING = [(f, name) for f, name in PAIRS if name not in REFUSED.get(f, {})]
#: BERT and RoBERTa have tests of their own with every method: ``test_registry``.
SHARED = covering((f, name) for f, name in WORKING if name in GROUPED)


def test_every_family_has_a_small_backbone() -> None:
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("family", "name", "why"),
    [(f, name, why) for f, refused in REFUSED.items() for name, why in refused.items()],
)
def test_a_method_whose_site_is_missing_says_so(family: str, name: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        build_model(small_family(family), name)
    assert family in str(caught.value) and f"method '{name}'" in str(caught.value)


def literal(model: TaskModel, vectors: Tensor, batch: Batch) -> Tensor:
    """Return the written-out states of each group by itself."""
    rows, parts = len(batch.read) // len(vectors), []
    for group, vector in enumerate(vectors):
        alone = slice(rows * group, rows * group + rows)
        texts = [
            getattr(batch, name)[alone]
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        params = {key: part[0] for key, part in model.layout.unpack(vector[None]).items()}
        if model.method.grouped:
            arguments = WRITTEN[model.method.settings.name](model, params)
            parts.append(written_states(model.backbone, *texts, **arguments))
            continue
        other = copy.deepcopy(model.backbone.model)
        for name, change in changed_weights(model, params).items():
            other.get_parameter(name).add_(change)
        parts.append(written_states(replace(model.backbone, model=other), *texts))
    return torch.cat(parts)


@lru_cache
def unchanged(family: str, groups: int) -> list[tuple[Batch, Tensor]]:
    """Return the batches of a family and their written-out states without a change."""
    backbone = small_family(family)
    batches = both_batches(build_model(backbone, "linear"), groups)
    return [
        (
            texts,
            written_states(backbone, texts.input_ids, texts.attention_mask, texts.token_type_ids),
        )
        for texts in batches
    ]


@pytest.mark.parametrize(("family", "name"), WORKING)
def test_states_equal_the_equations(family: str, name: str) -> None:
    model = build_model(small_family(family), name)
    groups = 2 if model.method.grouped else 1
    vectors = random_vectors(model, groups)
    for batch, plain in unchanged(family, groups):
        mask = batch.attention_mask
        actual, _ = model.hidden_states(model.realise(vectors).modifications, batch)
        expected = literal(model, vectors, batch)
        allowed = tolerance(family, expected)
        torch.testing.assert_close(
            at_text(actual, mask), at_text(expected, mask), rtol=0, atol=allowed
        )
        text = expected[:, -plain.shape[1] :] - plain
        assert name == "linear" or text.abs().max() > 1e-2, "a change that changes nothing"


@pytest.mark.parametrize(("family", "name"), SHARED)
def test_example_gradients_equal_single_examples(family: str, name: str) -> None:
    """One vector for each example: also groups are independent."""
    model = build_model(small_family(family), name)
    batch, vectors = both_batches(model)[0], random_vectors(model, 2)
    actual, losses = model.example_gradients(vectors, batch)
    assert_single(model, batch, vectors, actual, losses)


@pytest.mark.parametrize(("family", "name"), SHARED)
def test_a_cohort_equals_single_clients(family: str, name: str) -> None:
    model = build_model(small_family(family), name)
    batch, vectors = both_batches(model)[0], random_vectors(model, 2)
    outputs = model.outputs(model.realise(vectors), batch)
    gradients, _ = model.gradients(vectors, batch)
    allowed = tolerance(family)
    for group in range(2):
        alone, vector = part_of(batch, 3 * group, 3 * group + 3), vectors[group : group + 1]
        expected = model.outputs(model.realise(vector), alone)
        rows = outputs[3 * group : 3 * group + 3]
        torch.testing.assert_close(rows, expected, rtol=0, atol=allowed)
        (gradient,), _ = model.gradients(vector, alone)
        torch.testing.assert_close(gradients[group], gradient, rtol=allowed, atol=allowed)


def assert_single(
    model: TaskModel, batch: Batch, vectors: Tensor, actual: Tensor, losses: Tensor
) -> None:
    rows, allowed = len(batch.read) // len(vectors), tolerance(model.backbone.shape.family)
    for row in range(len(batch.read)):
        vector = vectors[row // rows : row // rows + 1]
        (gradient,), (loss,) = model.gradients(vector, part_of(batch, row, row + 1))
        torch.testing.assert_close(actual[row], gradient, rtol=allowed, atol=allowed)
        torch.testing.assert_close(losses[row], loss, rtol=0, atol=allowed)
        assert gradient.abs().max() > 1e-4


def test_the_documented_table_is_that_of_the_tests() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs"))
    from parts.families import refusals

    found = {(family, name) for family, row in refusals().items() for name in row if not row[name]}
    assert found == set(WORKING)


def test_small_settings_cover_every_method() -> None:
    assert set(SMALL) == set(METHODS)
