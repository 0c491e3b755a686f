"""Pairs whose texts pass on their own, against one text at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models import GROUPED, METHODS, SMALL, build_model, random_vectors, small_backbone, task_model

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.batches.encoded import Encoded
from fedpeft.batches.passes import parts_by_length
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import LocalSection, TaskSection
from fedpeft.heads import Full, Head
from fedpeft.model import TaskModel
from fedpeft.randomness import When
from fedpeft.runtime import Runtime
from fedpeft.tasks import load_task
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode
from fedpeft.training import outputs_of, train_cohort

WIDTH = 24
PACKING = ["slash", "lora", "houlsby", "bitfit"]


def pairs(count: int = 12) -> Examples:
    """Return pairs of texts of 1 to 5 words."""
    section = TaskSection(name="synthetic/similarity", train_limit=count, eval_limit=4)
    whole = load_task(section).train
    both = [str(text).split() for text in (*whole.text, *(whole.text_pair or []))]
    cut = [" ".join(words[: 1 + (3 * row) % 5]) for row, words in enumerate(both)]
    return Examples(cut[:count], cut[count:], whole.labels)


def texts_apart(backbone: Backbone, representation: str = "unit", count: int = 12) -> Encoded:
    return encode(pairs(count), backbone.tokenizer, representation, 48, apart=True)


def model_apart(name: str, **options: Any) -> TaskModel:
    backbone = small_backbone("roberta")
    method = build_model(backbone, name).method
    return task_model(backbone, method, Head("score", Full(1, 2 * WIDTH), apart=True), **options)


def batch_apart(model: TaskModel, groups: int, rows: int, packed: bool = False) -> Batch:
    data = texts_apart(model.backbone, count=groups * rows)
    order = np.arange(groups * rows).reshape(groups, rows)
    return model.collate([data] * groups, list(order), packed)


@pytest.mark.parametrize("representation", ["unit", "mean", "cls"])
@pytest.mark.parametrize("name", METHODS)
def test_outputs_are_those_of_one_text_at_a_time(name: str, representation: str) -> None:
    """The oracle passes each text alone, and combines both in numpy."""
    model = model_apart(name)
    single = task_model(model.backbone, model.method, Head("score", Full(1, WIDTH)))
    vectors = random_vectors(model, 1)
    modifications = model.realise(vectors).modifications
    examples, tokenizer = pairs(6), model.backbone.tokenizer
    data = encode(examples, tokenizer, representation, 48, apart=True)
    outputs = outputs_of(model, vectors[0].numpy(), data)
    parts = model.layout.unpack(vectors)
    weight, bias = parts["head.weight"][0].numpy(), parts["head.bias"][0].numpy()
    assert examples.text_pair is not None
    for row, both in enumerate(zip(examples.text, examples.text_pair, strict=True)):
        read = []
        for text in both:
            one = encode(Examples([text], None, np.zeros(1)), tokenizer, representation, 48)
            with torch.no_grad():
                batch = single.collate([one], [np.arange(1)])
                state = single.representations(modifications, batch)[0].numpy()
            read.append(state * np.sqrt(WIDTH) / np.linalg.norm(state))
        features = np.concatenate([read[0] * read[1], abs(read[0] - read[1])])
        np.testing.assert_allclose(outputs[row], weight @ features + bias, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_gradients_of_examples_are_those_of_each_pair_alone(name: str, packed: bool) -> None:
    model = model_apart(name)
    batch = batch_apart(model, 2, 3, packed and model.packs)
    assert (batch.packing is not None) == (packed and model.packs)
    assert len(batch.read) == 12 and len(batch.labels) == 6
    vectors = random_vectors(model, 2)
    gradients, losses = model.example_gradients(vectors, batch)
    data = texts_apart(model.backbone, count=6)
    for row in range(6):
        alone = model.collate([data], [np.array([row])])
        gradient, loss = model.gradients(vectors[row // 3][None], alone)
        torch.testing.assert_close(gradients[row], gradient[0], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(losses[row], loss[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", PACKING)
def test_packed_pairs_have_the_gradients_of_padded_ones(name: str) -> None:
    model = model_apart(name)
    batch = batch_apart(model, 2, 4, packed=True)
    assert batch.packing is not None
    vectors = random_vectors(model, 2)
    for one, other in zip(
        model.gradients(vectors, batch),
        model.gradients(vectors, replace(batch, packing=None)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cache", [0, 1 << 24])
@pytest.mark.parametrize("name", ["linear", "slash", "lora"])
def test_a_cohort_equals_single_clients_with_and_without_kept_states(name: str, cache: int) -> None:
    settings = {**SMALL[name], **({} if name == "linear" else {"layers": "2"})}
    backbone = small_backbone("roberta")
    method = build_model(backbone, name, **settings).method
    head = Head("score", Full(1, 2 * WIDTH), apart=True)
    model = task_model(backbone, method, head, cache=cache)
    local, when = LocalSection(lr=0.05, batch_size=4, epochs=2), When(1, 1, 2)
    data = texts_apart(backbone, count=20)
    clients = [data.select(np.arange(*ends)) for ends in ((0, 9), (9, 13), (13, 20))]
    start = model.parameters.initial(0)
    together = train_cohort(model, start, clients, [0, 1, 2], local, when)
    assert bool(model.kept.size) == bool(cache)
    plain = task_model(backbone, method, head)
    for row, texts in enumerate(clients):
        alone = train_cohort(plain, start, [texts], [row], local, when)
        np.testing.assert_allclose(together.vectors[row], alone.vectors[0], rtol=1e-9, atol=1e-9)


def test_passes_are_cut_by_the_longer_text_of_a_pair() -> None:
    """Three pairs: of 2 + 30, 16 + 16 and 3 + 3 tokens."""
    firsts, lengths = np.array([2, 16, 3]), np.array([32, 32, 6])
    data = Encoded(
        np.zeros(70, np.int32),
        np.zeros(70, np.uint8),
        np.array([0, 32, 64, 70]),
        np.zeros(3, np.int32),
        np.zeros(3),
        firsts=firsts,
    )
    np.testing.assert_array_equal(data.text_lengths, [2, 30, 16, 16, 3, 3])
    np.testing.assert_array_equal(data.padded, [60, 32, 6])
    np.testing.assert_array_equal(data.lengths, lengths)
    parts = parts_by_length([data], [np.arange(3)], overhead=1.0)
    assert [rows.tolist() for (rows,) in parts] == [[0], [1], [2]]
    chosen = data.select(np.array([2, 0]))
    np.testing.assert_array_equal(chosen.text_lengths, [3, 3, 2, 30])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["task.name=synthetic/sentiment"], "has no pairs of texts; expected 'joint'"),
        (["task.name=synthetic/entities"], "has no pairs of texts; expected 'joint'"),
        (["representation=mask"], "reads the mask between both texts; expected 'cls'"),
        (["head.labels=true"], "head.labels = true reads single texts"),
        (
            ["method.name=full", "privacy.unit=example", "privacy.epsilon=3"],
            "use another method than 'full'",
        ),
    ],
)
def test_what_does_not_fit_pairs_apart_is_refused(settings: list[str], message: str) -> None:
    common = ["backbone=tiny", "task.name=synthetic/inference", "task.pairs=apart"]
    small = [] if any("method" in each for each in settings) else ["method.d=16"]
    experiment = Experiment.load("", [*common, "representation=mean", *small, *settings])
    with pytest.raises(UserError, match=message):
        _ = Runtime(experiment).parameters
