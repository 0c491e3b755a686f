"""Checks of a text model's gradients, shared by both kinds of text models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from models import random_vectors
from small_families import tolerance

from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel

#: From a backbone and the rows of each group to a batch.
BatchOf = Callable[..., Batch]


def check_cohort(model: TaskModel, family: str, batch_of: BatchOf) -> None:
    """Assert that two clients in one batch get the gradients and losses of each alone."""
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


def check_examples(model: TaskModel, family: str, batch_of: BatchOf) -> None:
    """Assert that the gradients of examples equal those of batches of one."""
    vectors = random_vectors(model, 2)
    gradients, losses = model.example_gradients(vectors, batch_of(model.backbone, [0, 1], [2, 3]))
    for row in range(4):
        single = model.gradients(vectors[row // 2][None], batch_of(model.backbone, [row]))
        for actual, expected in zip((gradients[row], losses[row]), single, strict=True):
            allowed = tolerance(family, expected)
            torch.testing.assert_close(actual, expected[0], rtol=0, atol=allowed)
