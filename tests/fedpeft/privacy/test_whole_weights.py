"""Per-example gradients of methods that change whole weights, against one example at a time."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from models import (
    METHODS,
    batch_of,
    build_model,
    part_of,
    random_vectors,
    small_backbone,
    task_model,
)
from torch import Tensor

from fedpeft.backbones.loading import Backbone, load_backbone
from fedpeft.batches.batch import Batch
from fedpeft.heads import Head, Projected
from fedpeft.methods import method_class
from fedpeft.model import TaskModel
from fedpeft.privacy.whole_weights import example_gradients

WEIGHTS = [name for name in METHODS if not method_class(name).grouped]
TASKS = [
    ("synthetic/sentiment", 2, "classes", "mask"),
    ("synthetic/inference", 3, "classes", "cls"),
    ("synthetic/similarity", 1, "score", "mean"),
    ("synthetic/entities", 9, "tags", "mask"),
]
by_method = pytest.mark.parametrize("name", WEIGHTS)


@pytest.fixture(params=["bert", "roberta"])
def small(request: pytest.FixtureRequest) -> Backbone:
    return small_backbone(request.param)


def weighted(batch: Batch, *weights: float) -> Batch:
    return replace(batch, weights=torch.tensor(weights, dtype=torch.float64))


def assert_as_alone(model: TaskModel, vectors: Tensor, batch: Batch) -> None:
    """Every row's gradient and loss are those of a batch that holds nothing else."""
    gradients, losses = example_gradients(model, vectors, batch)
    assert gradients.shape == (len(batch.read), model.layout.size)
    assert not gradients.requires_grad and not losses.requires_grad
    for row, weight in enumerate(batch.weights):
        alone = weighted(part_of(batch, row, row + 1), 1.0)
        (expected,), (loss,) = model.gradients(vectors, alone)
        assert expected.norm() > 1e-3
        torch.testing.assert_close(gradients[row], weight * expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(losses[row], loss, rtol=1e-9, atol=1e-9)


def test_the_methods_that_change_weights_are_known() -> None:
    assert WEIGHTS == ["full", "said"]


@by_method
@pytest.mark.parametrize(("task", "classes", "kind", "representation"), TASKS)
def test_each_examples_gradient_equals_that_of_a_batch_of_one(
    small: Backbone, name: str, task: str, classes: int, kind: str, representation: str
) -> None:
    """In a padded batch with a row that only fills it up."""
    model = build_model(small, name, classes, kind)
    batch = weighted(batch_of(small, 1, 5, representation, task), 1, 1, 0, 1, 1)
    assert (batch.attention_mask == 0).any(), "nothing is padded: it would not be tested"
    assert_as_alone(model, random_vectors(model, 1), batch)


def test_both_token_types_have_gradients() -> None:
    """Where examples differ in where their second part begins."""
    model = build_model(small_backbone("bert"), "full")
    batch = batch_of(model.backbone, 1, 4)
    starts = torch.tensor([2, 4, 3, 50])[:, None]
    places = torch.arange(batch.input_ids.shape[1])
    batch = replace(batch, token_type_ids=(places >= starts).long())
    assert_as_alone(model, random_vectors(model, 1), batch)
    gradients, _ = example_gradients(model, random_vectors(model, 1), batch)
    types = model.layout.unpack(gradients)["embeddings.token_type_embeddings.weight"]
    assert types[:3, 1].any(dim=1).all() and not types[3, 1].any()


@by_method
def test_a_padding_token_inside_a_text_is_not_trained(small: Backbone, name: str) -> None:
    """Torch gives the padding's embedding no gradient; a text may still spell the token out."""
    model = build_model(small, name)
    batch = batch_of(small, 1, 3, "mean")
    batch.input_ids[1, 2] = small.tokenizer.pad_token_id
    assert_as_alone(model, random_vectors(model, 1), batch)


@by_method
def test_gradients_of_modules_called_several_times_add_up(
    small: Backbone, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers can run a feed-forward layer on some tokens after the others."""
    model, batch = build_model(small, name), batch_of(small, 1, 3)
    vectors = random_vectors(model, 1)
    whole, _ = example_gradients(model, vectors, batch)
    for block in small.model.encoder.layer:
        monkeypatch.setattr(block, "chunk_size_feed_forward", 1)
    calls = []
    counter = small.model.encoder.layer[0].output.register_forward_hook(
        lambda *_: calls.append(None)
    )
    pieces, _ = example_gradients(model, vectors, batch)
    counter.remove()
    assert len(calls) == batch.input_ids.shape[1] > 1
    torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-9)


@by_method
def test_example_gradients_under_autocast_are_close_to_float32(name: str) -> None:
    single = load_backbone("tiny", "cpu", "float32")
    exact = build_model(single, name)
    coarse = task_model(single, exact.method, exact.head, autocast="bfloat16")
    vectors = random_vectors(exact, 1, 0.1).float()
    batch = replace(batch_of(single, 1, 4), weights=torch.ones(4))
    (expected, _), (gradients, _) = (
        example_gradients(model, vectors, batch) for model in (exact, coarse)
    )
    assert 0 < (gradients - expected).norm() < 0.1 * expected.norm()
    parts, close = (exact.layout.unpack(each) for each in (expected, gradients))
    for part, value in parts.items():
        limit = 0.3 * value.norm() + 1e-3 * expected.norm()  # a bias of keys changes no output
        assert (close[part] - value).norm() <= limit, part


@by_method
@pytest.mark.parametrize("projections", ["stored", "regenerated"])
def test_example_gradients_through_a_projected_head(
    small: Backbone, name: str, projections: str
) -> None:
    like = build_model(small, name)
    head = Head("classes", Projected(3, small.shape.width, d=7, seed=3))
    model = task_model(small, like.method, head, projections=projections)
    assert_as_alone(model, random_vectors(model, 1), batch_of(small, 1, 3, "cls"))


@by_method
def test_example_gradients_sum_to_the_batch_gradient(small: Backbone, name: str) -> None:
    model, batch = build_model(small, name), batch_of(small, 1, 4)
    batch, vectors = weighted(batch, 1, 0, 1, 1), random_vectors(model, 1)
    (mean,), _ = model.gradients(vectors, batch)
    gradients, _ = example_gradients(model, vectors, batch)
    assert not gradients[1].any()
    torch.testing.assert_close(gradients.sum(0) / 3, mean, rtol=1e-9, atol=1e-9)


def state(backbone: Backbone) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in backbone.model.state_dict().items()}


def assert_untouched(backbone: Backbone, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(value, before[key]) for key, value in state(backbone).items())
    assert all(isinstance(p, torch.nn.Parameter) for p in backbone.model.parameters())
    for parameter in backbone.model.parameters():
        assert not parameter.requires_grad and parameter.grad is None
        assert not vars(parameter), "Opacus keeps what it finds on the parameters"
    for module in backbone.model.modules():
        assert not module.training
        assert not module._forward_hooks and not module._backward_hooks


def tensors() -> int:
    """How many tensors there are in Python."""
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


@by_method
def test_the_backbone_is_unchanged_and_no_memory_is_kept(small: Backbone, name: str) -> None:
    model, batch, before = build_model(small, name), batch_of(small, 1, 3), state(small)
    vectors = random_vectors(model, 1)
    first, _ = example_gradients(model, vectors, batch)
    assert_untouched(small, before)
    assert not vectors.requires_grad
    example_gradients(model, 2 * vectors, batch)
    assert torch.equal(first, example_gradients(model, vectors, batch)[0])
    gc.collect()
    gc.disable()  # a cycle would keep [N, P] numbers until Python happens to look for it
    try:
        fresh = build_model(small, name)
        count = tensors()
        example_gradients(fresh, vectors, batch)
        assert tensors() == count
    finally:
        gc.enable()


@by_method
def test_the_backbone_is_unchanged_after_an_error(small: Backbone, name: str) -> None:
    model, batch, before = build_model(small, name), batch_of(small, 1, 2), state(small)
    broken = replace(batch, input_ids=batch.input_ids + 10_000)  # behind the vocabulary
    with pytest.raises(IndexError):
        example_gradients(model, random_vectors(model, 1), broken)
    assert_untouched(small, before)


@by_method
def test_several_task_vectors_are_refused(small: Backbone, name: str) -> None:
    model = build_model(small, name)
    with pytest.raises(ValueError, match="too large to copy per example"):
        model.example_gradients(random_vectors(model, 1), batch_of(small, 1, 2))
    with pytest.raises(ValueError, match="changes whole weights: one task vector, not 2"):
        example_gradients(model, random_vectors(model, 2), batch_of(small, 2, 2))
