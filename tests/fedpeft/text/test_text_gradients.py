"""Gradients of both kinds of text models: of a cohort, and of single examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import GROUPED, random_vectors
from pairs import covering, fitting
from small_families import small_language, tolerance
from worded import likelihood_model, prompted_batch
from written_texts import text_batch, text_model

from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel

Maker = Callable[..., TaskModel]
#: From a backbone and the rows of each group to a batch.
BatchOf = Callable[..., Batch]

PAIRS = covering(
    fitting(["gpt2", "llama", "bart", "t5"], [name for name in GROUPED if name != "linear"]),
    families=[],
    names=["slash", "lora", "prefix", "prompt", "houlsby", "mam"],
)
of_both_kinds = pytest.mark.parametrize(
    ("build", "batch_of"),
    [(text_model, text_batch), (likelihood_model, prompted_batch)],
    ids=["tokens", "likelihood"],
)


@of_both_kinds
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_a_cohort_equals_single_clients(
    family: str, name: str, build: Maker, batch_of: BatchOf
) -> None:
    model = build(small_language(family), name)
    vectors = random_vectors(model, 2)
    together = model.gradients(vectors, batch_of(model.backbone, [0, 1, 4], [2, 3]))
    single = [
        model.gradients(vectors[:1], batch_of(model.backbone, [0, 1, 4])),
        model.gradients(vectors[1:], batch_of(model.backbone, [2, 3])),
    ]
    for index in range(2):
        expected = torch.cat([result[index] for result in single])
        allowed = tolerance(family, expected)
        torch.testing.assert_close(together[index], expected, rtol=0, atol=allowed)
    assert together[0].abs().sum(1).min() > 0


@of_both_kinds
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_gradients_of_examples_equal_those_of_batches_of_one(
    family: str, name: str, build: Maker, batch_of: BatchOf
) -> None:
    model = build(small_language(family), name)
    vectors = random_vectors(model, 2)
    gradients, losses = model.example_gradients(vectors, batch_of(model.backbone, [0, 1], [2, 3]))
    for row in range(4):
        single = model.gradients(vectors[row // 2][None], batch_of(model.backbone, [row]))
        for actual, expected in zip((gradients[row], losses[row]), single, strict=True):
            allowed = tolerance(family, expected)
            torch.testing.assert_close(actual, expected[0], rtol=0, atol=allowed)
