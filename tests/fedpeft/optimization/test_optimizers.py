"""Our elementwise optimisers against torch.optim, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeft.experiment.settings import LocalSection
from fedpeft.optimization.optimizers import (
    HeadRate,
    Steps,
    build_optimizer,
    clip_rows,
    learning_rate,
)

STEPS, ROWS, SIZE = 7, 3, 11


def torch_optimizer(local: LocalSection, row: torch.Tensor) -> torch.optim.Optimizer:
    if local.optimizer == "adamw":
        return torch.optim.AdamW([row], lr=1.0, weight_decay=local.weight_decay)
    return torch.optim.SGD([row], lr=1.0, momentum=local.momentum)


@pytest.mark.parametrize(
    "local",
    [
        LocalSection(optimizer="adamw", lr=0.1),
        LocalSection(optimizer="adamw", lr=0.1, weight_decay=0.3),
        LocalSection(optimizer="sgd", lr=0.1),
        LocalSection(optimizer="sgd", lr=0.1, momentum=0.9),
    ],
)
def test_each_row_is_trained_as_by_torch(local: LocalSection) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, SIZE, generator=draw, dtype=torch.float64)
    gradients = torch.randn(STEPS, ROWS, SIZE, generator=draw, dtype=torch.float64)
    rates = torch.rand(STEPS, ROWS, 1, generator=draw, dtype=torch.float64)
    vectors = start.clone()
    optimizer = build_optimizer(local, vectors)
    for step in range(STEPS):
        optimizer.step(vectors, gradients[step], rates[step, :, 0].tolist())
    for row in range(ROWS):
        expected = start[row].clone().requires_grad_()
        other = torch_optimizer(local, expected)
        for step in range(STEPS):
            other.param_groups[0]["lr"] = float(rates[step, row])
            expected.grad = gradients[step, row].clone()
            other.step()
        torch.testing.assert_close(vectors[row], expected.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-19, 1e-12])
def test_adamw_equals_torchs_for_tiny_squares(scale: float) -> None:
    """A square that is no number of float32 any more counts as a very small one."""
    draw = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(STEPS, SIZE, generator=draw)
    local = LocalSection(optimizer="adamw", lr=0.1)
    vectors, expected = start[None].clone(), start.clone().requires_grad_()
    optimizer, other = build_optimizer(local, vectors), torch_optimizer(local, expected)
    other.param_groups[0]["lr"] = 0.1
    for gradient in gradients:
        expected.grad = gradient * scale
        optimizer.step(vectors, gradient[None] * scale, [0.1])
        other.step()
    torch.testing.assert_close(vectors[0], expected.detach(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_long_rows_are_updated_in_blocks_to_the_same_bits(name: str) -> None:
    """A long row and a short one of the same numbers get the same update."""
    local = LocalSection(optimizer=name, lr=0.1, momentum=0.5, weight_decay=0.1)
    short = 1024
    long = 1 << 21  # of two rows two blocks and a rest
    draw = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(3, 2, short, generator=draw)
    ends = []
    for rows, size in ((2, short), (2, long + short), (1, long)):
        vectors = start[:rows].repeat(1, size // short)
        optimizer = build_optimizer(local, vectors)
        for gradient in gradients:
            optimizer.step(vectors, gradient[:rows].repeat(1, size // short), [0.1] * rows)
        ends.append(vectors.view(rows, -1, short))
    for end in ends:
        assert torch.equal(end, ends[0][: len(end), :1].expand_as(end))
    assert (ends[0] != start[:, None]).all()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_row_of_a_cohort_gets_the_same_bits_as_alone(name: str) -> None:
    local = LocalSection(optimizer=name, lr=0.1, momentum=0.5, weight_decay=0.1)
    draw = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(3, 3, 1003, generator=draw)  # no multiple of a vector's width
    rates = [0.1, 0.3, 0.1]

    def trained(rows: list[int]) -> torch.Tensor:
        vectors = start[rows].clone()
        optimizer = build_optimizer(local, vectors)
        for gradient in gradients:
            optimizer.step(vectors, gradient[rows], [rates[row] for row in rows])
        return vectors

    assert torch.equal(trained([0, 1, 2]), torch.cat([trained([row]) for row in range(3)]))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_finished_rows_do_not_change(name: str) -> None:
    local = LocalSection(optimizer=name, lr=0.1, momentum=0.5, weight_decay=0.1)
    vectors = torch.ones(3, 4, dtype=torch.float64)
    optimizer = build_optimizer(local, vectors)
    gradient, rates = torch.ones(3, 4).double(), [0.1] * 3
    optimizer.step(vectors, gradient, rates)
    kept = vectors.clone()
    optimizer.step(vectors[:2], gradient[:2], rates[:2])
    assert torch.equal(vectors[2], kept[2])
    assert (vectors[:2] != kept[:2]).all()


def test_clipping_of_each_row_equals_torchs() -> None:
    gradients = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    clipped = clip_rows(gradients.clone(), 1.0)
    for row in range(2):
        expected = gradients[row].clone().requires_grad_()
        expected.grad = gradients[row].clone()
        torch.nn.utils.clip_grad_norm_([expected], 1.0)
        torch.testing.assert_close(clipped[row], expected.grad)
    assert torch.equal(clip_rows(gradients, 0.0), gradients)
    long = clip_rows(torch.full((1, 5_000_000), 1e-3), 1.0)  # a sum that float32 gets wrong
    assert long.double().norm() == pytest.approx(1.0, rel=2e-6)


def test_schedule_rises_during_warmup_and_falls_to_zero() -> None:
    local = LocalSection(lr=0.5, warmup=0.2)
    shares = [0.0, 0.1, 0.2, 0.6, 1.0]
    rates = [learning_rate(local, share) for share in shares]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.25, 0.0])
    constant = LocalSection(lr=0.5, schedule="constant")
    assert [learning_rate(constant, share) for share in shares] == [0.5] * 5


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_head_with_its_own_rate_is_trained_as_if_it_were_alone(optimizer: str) -> None:
    local = LocalSection(optimizer=optimizer, lr=0.1, warmup=0.3, max_grad_norm=1.0, momentum=0.5)
    other = local.model_copy(update={"lr": 0.02})
    draw = torch.Generator().manual_seed(0)
    both = torch.randn(3, 7, generator=draw, dtype=torch.float64)
    method, head = both[:, :5].clone(), both[:, 5:].clone()
    together = Steps(local, both, head=HeadRate(2, 0.02))
    apart = Steps(local, method), Steps(other, head)
    for step in range(4):
        gradients = 5 * torch.randn(3, 7, generator=draw, dtype=torch.float64)
        progress = [step / 4] * 3
        parts = gradients[:, :5].clone(), gradients[:, 5:].clone()
        together.take(gradients, progress)
        for steps, part in zip(apart, parts, strict=True):
            steps.take(part, progress)
    torch.testing.assert_close(both, torch.cat([method, head], 1), rtol=1e-12, atol=1e-12)


def test_a_head_with_the_common_rate_changes_no_bit() -> None:
    local, draw = LocalSection(lr=0.1), torch.Generator().manual_seed(0)
    one = torch.randn(2, 9, generator=draw)
    other, gradients = one.clone(), torch.randn(2, 9, generator=draw)
    Steps(local, one).take(gradients.clone(), [0.0, 0.0])
    Steps(local, other, head=HeadRate(4, 0.1)).take(gradients.clone(), [0.0, 0.0])
    assert torch.equal(one, other)


def test_numbers_beside_a_steep_head_are_slower() -> None:
    local, draw = LocalSection(lr=0.1, optimizer="sgd", max_grad_norm=0.0), torch.Generator()
    start, gradients = (torch.randn(2, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    moved = start.clone()
    head = HeadRate(2, 0.1, steepness=2.0)
    Steps(local, moved, head=head, paces=[1.0, 0.25]).take(gradients.clone(), [0.0, 0.0])
    steps = (start - moved) / gradients / 0.1
    paces = torch.tensor([[1.0] * 7, [0.25] * 5 + [1.0] * 2], dtype=torch.float64)
    torch.testing.assert_close(steps, paces)


def test_the_pace_beside_a_head_follows_from_what_its_rows_do_not_share() -> None:
    head = HeadRate(2, 0.1, steepness=2.0)
    rows = np.array([[4.0, 0.0, 0.0], [0.0, 0.0, 4.0]])
    shared = np.array([3.0, -7.0, 100.0])
    assert head.pace(rows + shared) == pytest.approx(2.0**2 / 8)  # each row is sqrt(8) long
    assert head.pace(rows / 100) == head.pace(0 * rows) == 1.0
    assert head.pace(1e6 * rows[:1]) == 1.0  # of a score; its unit would decide
    assert HeadRate(2, 0.1).pace(1e6 * rows) == 1.0
    assert head.pace(rows[:0]) == 1.0  # a task of text has none
