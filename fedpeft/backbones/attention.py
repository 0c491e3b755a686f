"""Attention over trained keys and values before the text's, and over packed texts.

Registered with transformers' public ``AttentionInterface``. The model passes its keyword arguments
to the attention, so this needs no state in the model. Without the arguments the results are
bit-identical to those of the wrapped implementation, except in 16 bits on a CPU, see ``_fused``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from fedpeft.backbones import short_attention
from fedpeft.batches.packing import Packing

#: Attention -> (keys, values), each [G, l, width].
Prefixes = Mapping[nn.Module, tuple[Tensor, Tensor]]
Attention = Callable[..., tuple[Tensor, Tensor | None]]

SDPA, EAGER = "fedpeft-sdpa", "fedpeft-eager"


def _extended(attend: Attention) -> Attention:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        prefixes: Prefixes | None = None,
        packing: Packing | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if packing:  # from [G, heads, M, width of a head] to [N, heads, T, width of a head]
            query, key, value = (
                packing.unpack(part.transpose(1, 2)).transpose(1, 2) for part in (query, key, value)
            )
        if prefixes and module in prefixes:
            # A single query is the last token, which attends to all others.
            causal = getattr(module, "is_causal", False) and query.shape[2] > 1
            if attention_mask is None and causal:
                attention_mask = _causal(query, key)
            keys, values = (_spread(prefix, key) for prefix in prefixes[module])
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
            if attention_mask is not None:  # [N, 1, T, T], boolean or added
                attended = attention_mask.dtype == torch.bool
                attention_mask = functional.pad(attention_mask, (keys.shape[2], 0), value=attended)
            bias = options.get("position_bias")
            if bias is not None:  # [1, heads, T, T]; a prefix has no position
                options["position_bias"] = functional.pad(bias, (keys.shape[2], 0))
        output, weights = attend(module, query, key, value, attention_mask, **options)
        return (packing.pack(output) if packing else output), weights  # [N, T, heads, width]

    return attention


def _fused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return PyTorch's fused attention; for 16-bit inputs on a CPU float32, or products.

    In 16 bits, its backward pass takes 2.5 to 11 times as long on a CPU (bfloat16, 128 to 16
    tokens, torch 2.13, ``simulations.benchmarks.autocast``) and is less exact: it gets float32.
    Short texts in bfloat16 take less time by batched products (``short_attention``). The output has
    the dtype that autocast prescribes, also for float32 inputs (BitFit's shifts produce them).
    """
    if query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    lowered = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if lowered else query.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # float16 is left out: its products are slow on a CPU.
    if dtype == torch.bfloat16 and _short(module, query, key, attention_mask, options):
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        output = short_attention.attend(query, key, value, attention_mask, scale, dtype)
        return output.transpose(1, 2), None
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.float(), key.float(), value.float()
        if options.get("position_bias") is not None:  # T5's
            options["position_bias"] = options["position_bias"].float()
        output, weights = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
    return output.to(dtype), weights


def _short(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    options: Mapping[str, Any],
) -> bool:
    """Return whether products can compute the attention: short, with no options but a mask."""
    causal = mask is None and query.shape[2] > 1 and getattr(module, "is_causal", False)
    masked = mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1)
    return (
        short_attention.MIN_KEYS <= key.shape[2] <= short_attention.MAX_KEYS
        and query.shape[1] == key.shape[1]
        and masked
        and not causal
        and not options.get("dropout")
        and options.get("position_bias") is None
        and options.get("is_causal") is None
        and options.get("softcap") is None
    )


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """Return the mask of a text without padding, whose tokens attend to earlier ones, [1, 1, T, T].

    PyTorch's fused attention would derive it from the text's length, which a prefix changes.
    """
    size = query.shape[2], key.shape[2]
    return torch.ones(size, dtype=torch.bool, device=query.device).tril()[None, None]


def _eager(module: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Call the attention of equations in the file of transformers that defines the module."""
    attend: Attention = sys.modules[type(module).__module__].eager_attention_forward
    return attend(module, *inputs, **options)


def _spread(prefix: Tensor, key: Tensor) -> Tensor:
    """Expand a prefix [G, l, width] to rows and heads, [N, heads, l, width of a head]."""
    rows, heads, _, head_width = key.shape
    split = prefix.to(key.dtype).unflatten(2, (heads, head_width)).transpose(1, 2)
    return split.repeat_interleave(rows // len(prefix), dim=0)


AttentionInterface.register(SDPA, _extended(_fused))
AttentionMaskInterface.register(SDPA, sdpa_mask)
AttentionInterface.register(EAGER, _extended(_eager))
AttentionMaskInterface.register(EAGER, eager_mask)
