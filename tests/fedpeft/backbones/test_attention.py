"""Attention in 16 bits on a CPU, against softmax(q k^T / sqrt(width)) v in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from fedpeft.backbones.attention import SDPA

ROWS, HEADS, TOKENS, WIDTH = 3, 2, 9, 8


class Layer(nn.Module):
    """What the interface asks of the module that attends."""

    is_causal = False


def inputs(masked: bool) -> tuple[list[Tensor], Tensor | None, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (ROWS, HEADS, TOKENS, WIDTH)
    states = [torch.randn(shape, generator=draw) for _ in range(3)]
    lengths = torch.tensor([[TOKENS], [4], [1]])
    attended = torch.arange(TOKENS) < lengths
    mask = attended[:, None, None].expand(ROWS, 1, TOKENS, TOKENS) if masked else None
    return states, mask, torch.randn(ROWS, TOKENS, HEADS, WIDTH, generator=draw)


def attended(
    states: list[Tensor], mask: Tensor | None, outward: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Output and gradients of what is registered, under autocast to ``dtype``."""
    states = [state.detach().requires_grad_() for state in states]
    options: dict[str, Any] = {"dropout": 0.0, "scaling": WIDTH**-0.5}
    with torch.autocast("cpu", dtype=dtype):
        actual, _ = AttentionInterface()[SDPA](Layer(), *states, mask, **options)
    assert actual.dtype == dtype
    actual.backward(outward.to(dtype))
    return [actual.detach(), *(state.grad for state in states)]  # type: ignore[list-item]


def by_hand(
    states: list[Tensor], mask: Tensor | None, outward: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    query, key, value = (state.double().requires_grad_() for state in states)
    scores = query @ key.transpose(2, 3) * WIDTH**-0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    actual = (functional.softmax(scores, -1) @ value).transpose(1, 2)
    gradients = torch.autograd.grad(actual, (query, key, value), outward.to(dtype).double())
    return [actual.detach(), *gradients]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_16_bits_rounds_only_inputs_and_outputs(
    masked: bool, raised: bool, dtype: torch.dtype
) -> None:
    """Each number is off by its own last bit and no more: the sums in between are float32.

    Also of states that came in float32, as those do that BitFit shifts.
    """
    states, *given = inputs(masked)
    states, last = (
        [state if raised else state.to(dtype) for state in states],
        torch.finfo(dtype).eps,
    )
    found_all, exact_all = attended(states, *given, dtype), by_hand(states, *given, dtype)
    for actual, exact in zip(found_all, exact_all, strict=True):
        # Half a last bit is each number's own rounding; the way back begins at a rounded output,
        # which moves the gradients of query and key by some of their own size.
        off = actual.double() - exact
        assert off.abs().max() < last / 2 * exact.abs().max()
        assert off.norm() < 0.75 * last * exact.norm()
