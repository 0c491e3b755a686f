"""Robust prefix tuning: the directions, the loss, and what an extra prefix may change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import build_model, encoded, task_model

from fedpeft.backbones.loading import Backbone, load_backbone
from fedpeft.batches.batch import batches
from fedpeft.batches.encoded import Encoded
from fedpeft.errors import UserError
from fedpeft.model import TaskModel
from fedpeft.training import outputs_of
from simulations.benchmarks.parts.robust_prefix import (
    Standard,
    Tuning,
    principal,
    robust_outputs,
    standard_of,
)


@pytest.fixture(params=["mask", "mean"])
def data(request: pytest.FixtureRequest, tiny: Backbone) -> Encoded:
    return encoded(tiny, "synthetic/sentiment", request.param, 30)


@pytest.fixture
def model(tiny: Backbone) -> TaskModel:
    return build_model(tiny, "prefix", length=3)


def start(model: TaskModel) -> np.ndarray:
    return model.parameters.initial(4) * 10


def states_of(model: TaskModel, vector: np.ndarray, data: Encoded) -> list[torch.Tensor]:
    """Representations behind each block, from transformers' own record of hidden states."""
    batch = model.collate([data], [np.arange(len(data))])
    seen = []
    handle = model.backbone.model.register_forward_hook(
        lambda module, given, out: seen.append(out.hidden_states)
    )
    model.backbone.model.config.output_hidden_states = True
    try:
        with torch.no_grad():
            model.outputs(model.realise(torch.as_tensor(vector)[None]), batch)
    finally:
        model.backbone.model.config.output_hidden_states = False
        handle.remove()
    return [model.head.read(hidden, batch, 0) for hidden in seen[0][1:]]


def test_principal_directions_explain_the_share_of_the_variance() -> None:
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64))[0]
    scales = torch.tensor([3.0, 2.0, 1.0, 0.1, 0.1, 0.1], dtype=torch.float64)
    states = torch.randn(4000, 6, generator=draw, dtype=torch.float64) * scales @ basis.T + 7
    found = principal(states, 0.99)
    assert found.shape == (6, 3)
    torch.testing.assert_close(found.T @ found, torch.eye(3, dtype=torch.float64))
    wanted = basis[:, :3] @ basis[:, :3].T
    torch.testing.assert_close(found @ found.T, wanted, rtol=0, atol=0.02)
    assert principal(states, 0.6).shape == (6, 1)  # 9 of 14.03
    assert principal(states, 1.0).shape == (6, 6)


def test_the_standard_is_of_correctly_classified_examples(model: TaskModel, data: Encoded) -> None:
    vector = start(model)
    predicted = outputs_of(model, vector, data).argmax(1)
    correct = predicted == data.labels
    assert 2 <= correct.sum() <= len(data) - 2
    standard = standard_of(model, vector, data, 0.9)
    wrong = standard_of(model, vector, replace(data, labels=1 - data.labels), 0.9)
    assert (standard.examples, wrong.examples) == (correct.sum(), (~correct).sum())
    states = states_of(model, vector, data)
    assert len(standard.directions) == len(states) == model.method.shape.layers
    for along, hidden in zip(standard.directions, states, strict=True):
        expected = principal(hidden[torch.as_tensor(correct)], 0.9)
        torch.testing.assert_close(along @ along.T, expected @ expected.T)


def test_the_standard_under_autocast_is_close_to_that_in_float32() -> None:
    single = load_backbone("tiny", "cpu", "float32")
    exact = build_model(single, "prefix", length=3)
    coarse = task_model(single, exact.method, exact.head, autocast="bfloat16")
    data = encoded(single, "synthetic/sentiment", "mask", 30)
    standards = [standard_of(model, start(exact), data, 0.5) for model in (exact, coarse)]
    for expected, found in zip(*(standard.directions for standard in standards), strict=True):
        assert (expected[:, 0] @ found[:, 0]).abs() > 0.95


def test_the_distance_is_what_lies_outside_the_directions() -> None:
    draw = torch.Generator().manual_seed(1)
    along = torch.linalg.qr(torch.randn(5, 2, generator=draw, dtype=torch.float64))[0]
    inside = torch.randn(8, 2, generator=draw, dtype=torch.float64) @ along.T + 3
    standard = Standard((along, along), 8)
    assert standard.distance([inside]) < 1e-20
    any_states = torch.randn(8, 5, generator=draw, dtype=torch.float64)
    centred = any_states - any_states.mean(0)
    outside = centred @ (torch.eye(5, dtype=torch.float64) - along @ along.T)
    torch.testing.assert_close(standard.distance([any_states]), (outside**2).mean())
    torch.testing.assert_close(standard.distance([any_states] * 2), 2 * (outside**2).mean())
    assert standard.distance([any_states[:1]]) > 0.01  # a single text is not centred


def test_tuning_brings_a_batch_closer_to_the_standard(model: TaskModel, data: Encoded) -> None:
    vector = start(model)
    standard = standard_of(model, vector, data, 0.5)
    batch = model.collate([data], [np.arange(8)])
    distances = []

    class Watched(Standard):
        def distance(self, states: object) -> torch.Tensor:
            distances.append(super().distance(states))  # type: ignore[arg-type]
            return distances[-1]

    watched = Watched(standard.directions, standard.examples)
    robust_outputs(model, vector, data.select(np.arange(8)), watched, Tuning(steps=6, lr=0.02))
    assert len(distances) == 6
    assert distances[-1] < 0.95 * distances[0]
    before = standard.distance(states_of(model, vector, data.select(np.arange(8))))
    torch.testing.assert_close(distances[0].detach(), before)
    assert len(batch.read) == 8


def test_without_steps_the_outputs_are_those_of_the_trained_prefix(
    model: TaskModel, data: Encoded
) -> None:
    vector = start(model)
    standard = standard_of(model, vector, data)
    outputs = robust_outputs(model, vector, data, standard, Tuning(steps=0))
    np.testing.assert_allclose(outputs, outputs_of(model, vector, data), rtol=0, atol=1e-12)
    tuned = robust_outputs(model, vector, data, standard, Tuning(steps=2))
    assert np.abs(tuned - outputs).max() > 1e-3


def test_each_batch_is_tuned_alone_and_labels_are_ignored(model: TaskModel, data: Encoded) -> None:
    vector = start(model)
    standard, tuning = standard_of(model, vector, data), Tuning(steps=2, batch=10)
    unlabelled = replace(data, labels=np.zeros_like(data.labels))
    outputs = robust_outputs(model, vector, unlabelled, standard, tuning)
    for rows in batches(data.lengths, 10, None):
        alone = robust_outputs(model, vector, data.select(rows), standard, tuning)
        np.testing.assert_allclose(outputs[rows], alone, rtol=0, atol=1e-9)


def test_only_the_first_blocks_count_where_asked(model: TaskModel, data: Encoded) -> None:
    """A prefix behind the last block that counts has no gradient, and stays as trained."""
    vector = start(model)
    standard = standard_of(model, vector, data)
    first = robust_outputs(model, vector, data, standard, Tuning(steps=2, blocks=1))
    cut = Standard(standard.directions[:1], standard.examples)
    np.testing.assert_allclose(
        first, robust_outputs(model, vector, data, cut, Tuning(steps=2)), rtol=0, atol=1e-12
    )
    every = robust_outputs(model, vector, data, standard, Tuning(steps=2))
    assert np.abs(first - every).max() > 1e-4


def test_nothing_is_left_behind(model: TaskModel, data: Encoded) -> None:
    vector = start(model)
    copy = vector.copy()

    def hooks() -> int:
        return sum(len(module._forward_hooks) for module in model.backbone.model.modules())

    before = hooks()
    robust_outputs(model, vector, data, standard_of(model, vector, data), Tuning(steps=1))
    np.testing.assert_array_equal(vector, copy)
    assert hooks() == before
    assert all(weight.grad is None for weight in model.backbone.model.parameters())


def test_other_methods_and_heads_are_refused(tiny: Backbone, data: Encoded) -> None:
    lora = build_model(tiny, "lora")
    vector = lora.parameters.initial(0)
    standard = standard_of(lora, vector, data)
    with pytest.raises(UserError, match=r"method\.name = 'lora': robust prefix tuning needs 'pre"):
        robust_outputs(lora, vector, data, standard, Tuning())
    score = build_model(tiny, "prefix", 1, "score")
    with pytest.raises(UserError, match="a head of kind 'score': robust prefix tuning needs cl"):
        standard_of(score, score.parameters.initial(0), data)
    model = build_model(tiny, "prefix", length=3)
    vector = start(model)
    wrong = replace(data, labels=1 - outputs_of(model, vector, data).argmax(1))
    with pytest.raises(UserError, match="0 of 30 examples are classified correctly: expected at"):
        standard_of(model, vector, wrong)
