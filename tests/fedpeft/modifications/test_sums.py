"""Sums of weights and changes that are computed where they are used, against sums that are kept."""

from __future__ import annotations

import gc
import weakref
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
    """Uses a weight in many ways; the last two are outside its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.inner.weight
        assert weight.shape == (4, 4) and weight.dtype == torch.float32 and weight.dim() == 2
        hidden = self.table(inputs.argmax(-1)) + self.inner(inputs)
        hidden = hidden @ weight.T + (weight * 2)[0] + torch.stack([weight, weight]).sum(0)[0]
        return hidden.tanh() @ self.table.weight.t()


def changes_of(model: nn.Module) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(1, *weight.shape, generator=draw, dtype=weight.dtype)
        .mul_(0.1)
        .requires_grad_()
        for name, weight in model.named_parameters()
    }


def close(one: Tensor, other: Tensor, limit: float) -> bool:
    """Whether ``one``, which may be sparse, is equal up to rounding."""
    return float((one.to_dense() - other).abs().max()) <= limit * float(other.abs().max())


def assert_like_kept_sums(model: nn.Module, *inputs: Tensor, **named: Any) -> None:
    """Outputs under stand-ins equal those under kept sums, and gradients up to rounding.

    The gradients of several uses of a weight are added in another order.
    """
    changes = changes_of(model)

    def passed(weights: dict[str, Tensor]) -> Tensor:
        output: Any = functional_call(model, weights, inputs, named)
        return output if isinstance(output, Tensor) else output.last_hidden_state

    expected = passed({k: model.get_parameter(k) + d.squeeze(0) for k, d in changes.items()})
    with summed(model, changes) as weights:
        found = passed(weights)
    assert torch.equal(found, expected)
    gradients = [
        torch.autograd.grad(output.square().sum(), [*changes.values()], allow_unused=True)
        for output in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or close(one, other, 1e-12 if one.dtype == torch.float64 else 1e-5)
    assert sum(one.abs().sum() for one in gradients[1] if one is not None) > 0


def test_every_use_of_a_weight_sees_the_sum() -> None:
    torch.manual_seed(0)
    inputs, model = torch.randn(3, 4), Uses()
    assert_like_kept_sums(model, inputs)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_sees_sums_in_all_its_weights(family: str) -> None:
    backbone = small_family(family)
    inputs = model_inputs(backbone.model, backbone.shape, batch_of(backbone, groups=1, rows=3))
    assert_like_kept_sums(backbone.model, **inputs)


def test_a_forward_pass_keeps_no_sum() -> None:
    """What stays allocated after it is less than one of the eight weights."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    changes, inputs = changes_of(model), torch.randn(1, 256)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as kept:
        sums = {name: model.get_parameter(name) + d.squeeze(0) for name, d in changes.items()}
        outputs = [functional_call(model, sums, inputs)]
        del sums
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as computed:
        with summed(model, changes) as weights:
            outputs.append(functional_call(model, weights, inputs))
        del weights
    weight = 4 * 256 * 256
    assert allocated(kept) > 7 * weight  # the first is not needed: its input has no gradient
    assert 0 < allocated(computed) < weight


def test_nothing_is_kept_after_the_backward_pass() -> None:
    """Not even until the garbage collector runs: a change can be as large as the backbone."""
    model = Uses()
    changes = changes_of(model)
    watched = [weakref.ref(change) for change in changes.values()]
    gc.disable()
    try:
        with summed(model, changes) as weights:
            functional_call(model, weights, torch.randn(3, 4)).sum().backward()
        del weights, changes
        assert [change() for change in watched] == [None] * len(watched)
    finally:
        gc.enable()


def allocated(profiled: profile) -> int:
    """Bytes that were allocated and not freed."""
    return sum(event.self_cpu_memory_usage for event in profiled.events() or [])
