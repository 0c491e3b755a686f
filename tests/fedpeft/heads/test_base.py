"""The head: losses of each kind, and tags of words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from models import batch_of, build_model, part_of, random_vectors, small_backbone
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.batches.encoded import IGNORED
from fedpeft.heads import Full, Head
from fedpeft.model import TaskModel

TAGS = 9


@pytest.fixture(params=["roberta", "bert"])
def small(request: pytest.FixtureRequest) -> Backbone:
    return small_backbone(request.param)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_loss_of_classes_is_cross_entropy() -> None:
    logits, labels = random(5, 3), torch.tensor([0, 2, 1, 1, 0])
    result = Head("classes", Full(3, 4)).losses(logits, labels)
    expected = -logits.softmax(1).log()[torch.arange(5), labels]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.mean(), functional.cross_entropy(logits, labels))


def test_the_loss_of_a_score_is_the_squared_error() -> None:
    outputs, labels = random(5, 1), random(6)[1:]
    result = Head("score", Full(1, 4)).losses(outputs, labels)
    torch.testing.assert_close(result, (outputs[:, 0] - labels) ** 2, rtol=0, atol=1e-12)


def test_the_loss_of_tags_is_the_mean_over_an_examples_words() -> None:
    """Not over the batch's: a long text weighs as much as a short one."""
    logits = random(3, 4, TAGS)
    labels = torch.tensor([[IGNORED, 3, IGNORED, 8], [0, 1, 2, 3], [IGNORED] * 4])
    result = Head("tags", Full(TAGS, 4)).losses(logits, labels)
    expected = [functional.cross_entropy(logits[0, [1, 3]], labels[0, [1, 3]])]
    expected += [functional.cross_entropy(logits[1], labels[1]), torch.tensor(0.0).double()]
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-12)


def tagged(backbone: Backbone, name: str) -> tuple[TaskModel, Batch, Tensor]:
    """A tagger, two groups of texts, and random task vectors."""
    model = build_model(backbone, name, TAGS, "tags")
    batch = batch_of(backbone, 2, 3, task="synthetic/entities")
    assert (batch.attention_mask == 0).any() and (batch.labels >= 0).any(1).all()
    return model, batch, random_vectors(model, 2)


@pytest.mark.parametrize("name", ["linear", "prompt", "jr_warp", "prefix", "lora"])
def test_tags_are_read_at_the_first_tokens_of_their_words(small: Backbone, name: str) -> None:
    """Whatever stands in front of the text."""
    model, batch, vectors = tagged(small, name)
    realised = model.realise(vectors)
    outputs = model.outputs(realised, batch)
    assert outputs.shape == (*batch.input_ids.shape, TAGS)
    hidden, _ = model.hidden_states(realised.modifications, batch)
    in_front = hidden.shape[1] - batch.input_ids.shape[1]
    assert in_front == {"prompt": 3, "jr_warp": 2}.get(name, 0)
    for row in range(6):
        weight, bias = realised.head_weight[row // 3], realised.head_bias[row // 3]
        for token in range(batch.input_ids.shape[1]):
            expected = weight @ hidden[row, in_front + token] + bias
            torch.testing.assert_close(outputs[row, token], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "prompt", "jr_warp", "prefix", "lora"])
def test_padding_changes_no_tag(small: Backbone, name: str) -> None:
    model, batch, vectors = tagged(small, name)
    outputs = model.outputs(model.realise(vectors), batch)
    losses = model.losses(outputs, batch)
    for row in range(6):
        alone = part_of(batch, row, row + 1)
        expected = model.outputs(model.realise(vectors[row // 3][None]), alone)
        length = alone.input_ids.shape[1]
        torch.testing.assert_close(outputs[row, :length], expected[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(losses[row], model.losses(expected, alone)[0])


def test_padding_has_no_label(small: Backbone) -> None:
    _, batch, _ = tagged(small, "linear")
    assert (batch.labels[batch.attention_mask == 0] == IGNORED).all()
    model = build_model(small, "linear", TAGS, "tags")
    vectors = random_vectors(model, 2)
    noise = batch.input_ids.masked_fill(batch.attention_mask == 0, 7)
    losses = [
        model.losses(model.outputs(model.realise(vectors), texts), texts)
        for texts in (batch, replace(batch, input_ids=noise))
    ]
    assert torch.isfinite(losses[0]).all() and (losses[0] > 0).all()
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
