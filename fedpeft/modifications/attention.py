"""Attention with trained keys and values in front of the text's own, and of packed texts.

Registered with transformers' public ``AttentionInterface``: the model hands its keyword
arguments down to the attention, so neither needs any state in the model. Without them, the
numbers are those of the implementation behind it, to the bit; only 16-bit numbers on a CPU have a
way of their own, see ``_fused``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.models.bert.modeling_bert import eager_attention_forward

from fedpeft.modifications.packing import Packing

#: Layer -> (keys, values), each [G, l, width].
Prefixes = Mapping[int, tuple[Tensor, Tensor]]
Attention = Callable[..., tuple[Tensor, Tensor | None]]

SDPA, EAGER = "fedpeft-sdpa", "fedpeft-eager"


def _extended(attend: Attention) -> Attention:
    def attention(
        module: torch.nn.Module,
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
                packing.unpack(each.transpose(1, 2)).transpose(1, 2) for each in (query, key, value)
            )
        if prefixes and module.layer_idx in prefixes:
            keys, values = (_spread(prefix, key) for prefix in prefixes[module.layer_idx])
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
            if attention_mask is not None:  # [N, 1, T, T], boolean or added
                attended = attention_mask.dtype == torch.bool
                attention_mask = functional.pad(attention_mask, (keys.shape[2], 0), value=attended)
        found, weights = attend(module, query, key, value, attention_mask, **options)
        return (packing.pack(found) if packing else found), weights  # [N, T, heads, width]

    return attention


def _fused(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return PyTorch's fused attention; on a CPU never in 16 bits.

    There its backward makes it take 2.5 to 11 times as long (bfloat16, 128 to 16 tokens; torch
    2.13, ``simulations.benchmarks.autocast``), nearly half of a step, and it is less exact. Numbers
    in float32, as BitFit's shifts make them, count as what autocast would lower them to.
    """
    lowered = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if lowered else query.dtype
    if query.device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.float(), key.float(), value.float()
        found, weights = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
    return found.to(dtype), weights


def _spread(prefix: Tensor, key: Tensor) -> Tensor:
    """Return a prefix [G, l, width] for every row and head, [N, heads, l, width of a head]."""
    rows, heads, _, head_width = key.shape
    split = prefix.to(key.dtype).unflatten(2, (heads, head_width)).transpose(1, 2)
    return split.repeat_interleave(rows // len(prefix), dim=0)


AttentionInterface.register(SDPA, _extended(_fused))
AttentionMaskInterface.register(SDPA, sdpa_mask)
AttentionInterface.register(EAGER, _extended(eager_attention_forward))
AttentionMaskInterface.register(EAGER, eager_mask)
