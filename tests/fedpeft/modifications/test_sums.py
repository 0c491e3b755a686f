"""Sums of weights and changes that are computed where they are used, against sums that are kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from models import batch_of
from small_families import CONFIGS, small_family
from torch import Tensor, nn
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile

from fedpeft.modifications.inputs import model_inputs
from fedpeft.modifications.sums import summed


class Uses(nn.Module):
    """Use weights in many ways, inside their modules and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.inner.weight
        assert weight.shape == (4, 4) and weight.dtype == torch.float32 and weight.dim() == 2
        hidden = self.table(inputs.argmax(-1)) + self.inner(inputs)
        hidden = hidden @ weight.T + (weight * 2)[0] + torch.stack([weight, weight]).sum(0)[0]
        return hidden.tanh() @ self.table.weight.tanh().t()


class Attention(nn.Module):
    """An attention whose products each save a part of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), nn.MultiheadAttention(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        output: Tensor = self.inner(hidden, hidden.roll(1), hidden.roll(2))[0]
        return output


def changes_of(model: nn.Module) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(1, *weight.shape, generator=draw, dtype=weight.dtype)
        .mul_(0.1)
        .requires_grad_()
        for name, weight in model.named_parameters()
    }


def kept(model: nn.Module, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the changed weights of ``model``; the oracle."""
    return {name: model.get_parameter(name) + d.squeeze(0) for name, d in changes.items()}


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether ``one``, which may be sparse, equals ``other`` up to rounding."""
    limit = 1e-12 if one.dtype == torch.float64 else 1e-5
    return float((one.to_dense() - other).abs().max()) <= limit * float(other.abs().max())


def assert_like_kept_sums(model: nn.Module, *inputs: Tensor, **named: Any) -> None:
    """Compare with kept sums: outputs to the bit, gradients up to rounding.

    PyTorch adds the gradients of several uses of a weight in another order.
    """
    changes = changes_of(model)
    outputs = [
        functional_call(model, weights(model, changes), inputs, named) for weights in (summed, kept)
    ]
    actual, expected = (getattr(output, "last_hidden_state", output) for output in outputs)
    assert torch.equal(actual, expected)
    gradients = [
        torch.autograd.grad(output.square().sum(), [*changes.values()], allow_unused=True)
        for output in (actual, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or close(one, other)
    assert sum(one.abs().sum() for one in gradients[1] if one is not None) > 0


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("kind", "width"), [(Uses, 4), (Attention, 8)])
def test_every_use_of_a_weight_sees_the_sum(
    kind: Callable[[], nn.Module], width: int, autocast: bool
) -> None:
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert_like_kept_sums(kind(), torch.randn(3, width))


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_sees_sums_in_all_its_weights(family: str) -> None:
    backbone = small_family(family)
    inputs = model_inputs(backbone.model, backbone.shape, batch_of(backbone, groups=1, rows=3))
    assert_like_kept_sums(backbone.model, **inputs)


def test_gradients_pass_through_computed_changes() -> None:
    torch.manual_seed(0)
    model, inputs = Uses(), torch.randn(3, 4)
    trained = torch.full((), 0.5, requires_grad=True)
    changes = {name: trained * change.detach() for name, change in changes_of(model).items()}
    outputs = [functional_call(model, make(model, changes), inputs) for make in (summed, kept)]
    one, other = (
        torch.autograd.grad(output.sum(), trained, retain_graph=True) for output in outputs
    )
    torch.testing.assert_close(one, other)


def test_a_forward_pass_keeps_no_sum() -> None:
    """What stays allocated after it is less than one of the eight weights."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    changes, inputs = changes_of(model), torch.randn(1, 256)
    outputs = []

    def bytes_of(weights: Callable[..., dict[str, Tensor]]) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as passed:
            outputs.append(functional_call(model, weights(model, changes), inputs))
        return sum(event.self_cpu_memory_usage for event in passed.events() or [])

    weight = 4 * 256 * 256
    assert bytes_of(kept) > 7 * weight  # the first is not needed: its input has no gradient
    assert 0 < bytes_of(summed) < weight


def test_rows_of_a_table_are_looked_up_without_its_sum() -> None:
    model = nn.Embedding(1000, 64)
    changes, rows = changes_of(model), torch.tensor([3, 5])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as passed:
        output = functional_call(model, summed(model, changes), rows)
        (gradient,) = torch.autograd.grad(output.sum(), [*changes.values()])
    assert gradient.is_sparse
    most = max(event.self_cpu_memory_usage for event in passed.events() or [])
    assert 0 < most < model.weight.nbytes / 10


@pytest.mark.parametrize("back", [True, False])
def test_nothing_is_kept_after_a_pass(back: bool) -> None:
    """Not even until the garbage collector runs: a change can be as large as the backbone."""
    model = Uses()
    changes = changes_of(model)
    watched = [weakref.ref(change) for change in changes.values()]
    gc.disable()
    try:
        output = functional_call(model, summed(model, changes), torch.randn(3, 4))
        if back:
            output.sum().backward()
        del output, changes
        assert [change() for change in watched] == [None] * len(watched)
    finally:
        gc.enable()
