"""A BERT or RoBERTa encoder written out from its equations: the obvious oracle for the hooks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Change = Callable[[str, int, Tensor, Tensor], Tensor]


def literal_encoder(
    model: torch.nn.Module,
    input_ids: Tensor,
    mask: Tensor,
    change: Change = lambda site, layer, hidden, source: hidden,
    prompt: Tensor | None = None,
) -> Tensor:
    """Return the last hidden states [N, k + T, width].

    ``change(site, layer, hidden, source)`` may modify a representation; ``prompt`` [N, k, width]
    stands in front of the embeddings.
    """
    weights, config = dict(model.named_parameters()), model.config
    hidden = model.embeddings(input_ids=input_ids)
    if prompt is not None:
        hidden = torch.cat([prompt, hidden], dim=1)
        mask = torch.cat([mask.new_ones(len(mask), prompt.shape[1]), mask], dim=1)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    heads = config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            change(site, layer, linear(hidden, f"{at}.attention.self.{name}"), hidden)
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for site, name in (("q", "query"), ("k", "key"), ("v", "value"))
        )
        attention = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        attention = attention.masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
        mixed = (attention @ v).transpose(1, 2).flatten(2)
        out = linear(mixed, f"{at}.attention.output.dense") + hidden
        attended = norm(out, f"{at}.attention.output.LayerNorm")
        attended = change("attn_norm", layer, attended, attended)
        middle = change("ffn_mid", layer, linear(attended, f"{at}.intermediate.dense"), attended)
        out = linear(functional.gelu(middle), f"{at}.output.dense") + attended
        out = change("ffn_out", layer, out, out)
        hidden = norm(out, f"{at}.output.LayerNorm")
        hidden = change("ffn_norm", layer, hidden, hidden)
    return hidden
