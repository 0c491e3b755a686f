"""Attention in 16 bits on a CPU, against softmax(q k^T / sqrt(width)) v in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from fedpeft.backbones import short_attention
from fedpeft.backbones.attention import SDPA

ROWS, HEADS, TOKENS, WIDTH = 3, 2, 9, 8


class Layer(nn.Module):
    """What the interface asks of the module that attends."""

    is_causal = False


def inputs(masked: bool, tokens: int = TOKENS) -> tuple[list[Tensor], Tensor | None, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (ROWS, HEADS, tokens, WIDTH)
    states = [torch.randn(shape, generator=draw) for _ in range(3)]
    lengths = torch.tensor([[tokens], [4], [1]])
    attended = torch.arange(tokens) < lengths
    mask = attended[:, None, None].expand(ROWS, 1, tokens, tokens) if masked else None
    return states, mask, torch.randn(ROWS, tokens, HEADS, WIDTH, generator=draw)


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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [17, 40, short_attention.MAX_KEYS])
def test_attention_by_products_in_bfloat16_is_off_by_two_last_bits(
    masked: bool, tokens: int
) -> None:
    """The inputs of all products are rounded, so each result is off by a few roundings."""
    states, *given = inputs(masked, tokens)
    states = [state.bfloat16() for state in states]
    actual_all = attended(states, *given, torch.bfloat16)
    exact_all = by_hand(states, *given, torch.bfloat16)
    for actual, exact in zip(actual_all, exact_all, strict=True):
        off = (actual.double() - exact).norm()
        assert off < 2 * torch.finfo(torch.bfloat16).eps * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 9), (16, 16), (13, 17), (33, 64)])
def test_products_equal_fused_attention(queries: int, keys: int, dtype: torch.dtype) -> None:
    """Also for more keys than queries, as with a prefix, and for masks of every query."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(ROWS, count, HEADS, WIDTH, dtype=dtype, generator=draw)
        .transpose(1, 2)
        .requires_grad_()
        for count in (queries, keys, keys)
    )
    mask = torch.rand(ROWS, 1, queries, keys, generator=draw) < 0.7
    mask[..., 0] = True
    outward = torch.randn(ROWS, HEADS, queries, WIDTH, dtype=dtype, generator=draw)
    for chosen in (None, mask, mask[:, :, :1].expand(mask.shape)):
        expected = functional.scaled_dot_product_attention(query, key, value, chosen)
        actual = short_attention.attend(query, key, value, chosen, WIDTH**-0.5, dtype)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            torch.autograd.grad(actual, (query, key, value), outward),
            torch.autograd.grad(expected, (query, key, value), outward),
        )


def test_a_query_without_keys_is_finite() -> None:
    states, mask, _ = inputs(True, 20)
    assert mask is not None
    none = torch.zeros_like(mask)
    assert short_attention.attend(*states, none, 1.0, torch.bfloat16).isfinite().all()
