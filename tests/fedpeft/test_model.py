"""Gradients of the task model against slow ways that are obviously right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import (
    GROUPED,
    METHODS,
    batch_of,
    build_model,
    part_of,
    random_vectors,
    small_backbone,
    task_model,
)

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.heads import Full, Head
from fedpeft.model import TaskModel
from fedpeft.tasks.base import Kind

CASES = [
    ("synthetic/sentiment", 2, "classes", "mask"),
    ("synthetic/inference", 3, "classes", "cls"),
    ("synthetic/similarity", 1, "score", "mean"),
]


def loop_of_single_examples(
    model: TaskModel, vectors: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each example's gradient [N, P] and loss [N] by a backward for each."""
    rows = len(batch.read) // len(vectors)
    gradients, losses = [], []
    for row in range(len(batch.read)):
        leaf = vectors[row // rows : row // rows + 1].clone().requires_grad_()
        single = part_of(batch, row, row + 1)
        loss = model.losses(model.outputs(model.realise(leaf), single), single)[0]
        loss.backward()
        gradients.append(leaf.grad[0])
        losses.append(loss.detach())
    return torch.stack(gradients), torch.stack(losses)


#: Every method with each backbone and with two of the heads; two methods with each head.
EXAMPLES = [
    (name, case, family)
    for place, name in enumerate(GROUPED)
    for number, case in enumerate(CASES)
    for family in ("tiny", "bert")
    if number == (place + (family == "bert")) % 3 or name in ("slash", "prompt")
]


@pytest.mark.parametrize(("name", "case", "family"), EXAMPLES)
def test_example_gradients_equal_a_loop(
    tiny: Backbone, name: str, case: tuple[str, int, Kind, str], family: str
) -> None:
    task, classes, kind, representation = case
    backbone = tiny if family == "tiny" else small_backbone(family)
    model = build_model(backbone, name, classes, kind)
    batch = batch_of(backbone, 2, 3, representation, task)
    vectors = random_vectors(model, 2)
    expected, expected_losses = loop_of_single_examples(model, vectors, batch)
    gradients, losses = model.example_gradients(vectors, batch)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-9, atol=1e-11)
    error = (gradients - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 1e-8


@pytest.mark.parametrize("name", GROUPED)
def test_group_gradient_is_the_weighted_mean_of_its_examples(tiny: Backbone, name: str) -> None:
    model = build_model(tiny, name)
    batch, vectors = batch_of(tiny, 2, 4), random_vectors(model, 2)
    weights = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.float64)
    batch = Batch(**{**vars(batch), "weights": weights.flatten()})
    gradients, losses = model.gradients(vectors, batch)
    examples, example_losses = model.example_gradients(
        vectors, Batch(**{**vars(batch), "weights": torch.ones(8, dtype=torch.float64)})
    )
    share = weights / weights.sum(1, keepdim=True)
    expected = torch.einsum("gn,gnp->gp", share, examples.view(2, 4, -1))
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(losses, (share * example_losses.view(2, 4)).sum(1))


def test_rows_of_weight_zero_have_no_gradient(tiny: Backbone) -> None:
    model = build_model(tiny, "slash")
    batch = batch_of(tiny, 1, 3)
    batch = Batch(**{**vars(batch), "weights": torch.tensor([1.0, 0, 1]).double()})
    gradients, _ = model.example_gradients(random_vectors(model, 1), batch)
    assert not gradients[1].any()
    assert gradients[0].any() and gradients[2].any()


@pytest.mark.parametrize("representation", ["mask", "cls", "mean", "unit"])
def test_head_reads_the_representation(tiny: Backbone, representation: str) -> None:
    method, width = build_model(tiny, "linear").method, tiny.shape.width
    head = Head("classes", Full(2, width), unit=representation == "unit")
    model = task_model(tiny, method, head)
    batch, vectors = batch_of(tiny, 1, 4, representation), random_vectors(model, 1)
    hidden = tiny.model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask
    ).last_hidden_state
    read = []
    for row, ids in enumerate(batch.input_ids):
        if representation == "mask":
            read.append(hidden[row, ids.tolist().index(tiny.tokenizer.mask_token_id)])
        elif representation == "cls":
            read.append(hidden[row, 0])
        else:
            mean = hidden[row, : int(batch.attention_mask[row].sum())].mean(0)
            read.append(mean * (width**0.5 / mean.norm() if representation == "unit" else 1))
    parts = model.layout.unpack(vectors)
    expected = torch.stack(read) @ parts["head.weight"][0].T + parts["head.bias"][0]
    outputs = model.outputs(model.realise(vectors), batch)
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-9)


def test_initial_vector_is_the_same_for_a_seed_and_differs_between_seeds(tiny: Backbone) -> None:
    model = build_model(tiny, "slash", d="max")
    first, again, other = (
        model.parameters.initial(1),
        model.parameters.initial(1),
        model.parameters.initial(2),
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    z, bias = first[:64], first[-2:]
    assert abs(z.std() * 64**0.5 - 1) < 0.25, "z has variance 1/d"
    assert not bias.any()


@pytest.mark.parametrize("name", METHODS)
def test_autocast_results_are_close_to_float32(name: str) -> None:
    from fedpeft.backbones.loading import load_backbone

    single = load_backbone("tiny", "cpu", "float32")
    exact = build_model(single, name)
    coarse = task_model(single, exact.method, exact.head, autocast="bfloat16")
    groups = 2 if exact.method.grouped else 1
    vectors, batch = random_vectors(exact, groups, 0.1).float(), batch_of(single, groups, 4)
    batch = Batch(**{**vars(batch), "weights": batch.weights.float()})
    (gradient, loss), (coarse_gradient, coarse_loss) = (
        model.gradients(vectors, batch) for model in (exact, coarse)
    )
    assert 0 < (loss - coarse_loss).abs().max() < 0.02
    assert (gradient - coarse_gradient).norm() < 0.1 * gradient.norm()
