"""The modules of a transformer written out, with their names in each family's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from small_families import LLAMAS, PRE_NORM
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones.loading import Backbone

#: Site -> name of its module in a block.
BERT = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "attn_out": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "ffn_mid": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
LLAMA = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_mid": "mlp.gate_proj",
    "ffn_factor": "mlp.up_proj",
    "ffn_out": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
BART = {
    **{name: f"self_attn.{name}_proj" for name in "qkv"},
    "attn_out": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm",
    **{f"cross_{name}": f"encoder_attn.{name}_proj" for name in "qkv"},
    "cross_out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "ffn_mid": "fc1",
    "ffn_out": "fc2",
    "ffn_norm": "final_layer_norm",
}


def t5_names(first: Mapping[str, str], decoder: bool) -> dict[str, str]:
    last = 2 if decoder else 1
    return {
        **{name: f"layer.0.SelfAttention.{name}" for name in "qkv"},
        "attn_out": "layer.0.SelfAttention.o",
        "attn_norm": "layer.0.layer_norm",
        **{f"cross_{name}": f"layer.1.EncDecAttention.{name}" for name in "qkv"},
        "cross_out": "layer.1.EncDecAttention.o",
        "cross_norm": "layer.1.layer_norm",
        **{site: f"layer.{last}.DenseReluDense.{name}" for site, name in first.items()},
        "ffn_out": f"layer.{last}.DenseReluDense.wo",
        "ffn_norm": f"layer.{last}.layer_norm",
    }


class Modules:
    """The weights of a backbone, and what each kind of module computes with them."""

    def __init__(self, backbone: Backbone):
        self.model: Any = backbone.model
        self.weights = dict(self.model.named_parameters(remove_duplicate=False))
        self.config, self.family = self.model.config, backbone.shape.family
        self.pre = self.family in PRE_NORM
        self.rms = self.family in (*LLAMAS, "t5", "t5-gated")
        self.rotary = self.family in (*LLAMAS, "modernbert")
        self.heads = backbone.shape.heads

    def matrix(self, name: str, site: str) -> tuple[Tensor, Tensor | float]:
        """Return weight [outputs, inputs] and bias of a linear layer, of a fused one its part."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias", 0.0)
        if self.family == "gpt2":
            weight = weight.T
        fused = {"c_attn": "qkv", "Wqkv": "qkv", "Wi": ("ffn_mid", "ffn_factor")}
        parts = fused.get(name.rpartition(".")[2])
        if parts:
            at = parts.index(site)
            weight = weight.chunk(len(parts))[at]
            bias = bias.chunk(len(parts))[at] if isinstance(bias, Tensor) else bias
        return weight, bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in self.weights:  # the first of ModernBERT
            return x
        epsilon = self.model.get_submodule(name)
        epsilon = getattr(epsilon, "eps", None) or epsilon.variance_epsilon
        centred = x if self.rms else x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def activation(self, x: Tensor) -> Tensor:
        if self.family in ("gpt2", "t5-gated"):
            return functional.gelu(x, approximate="tanh")
        if self.family in LLAMAS:
            return functional.silu(x)
        return functional.relu(x) if self.family == "t5" else functional.gelu(x)

    def rotated(self, x: Tensor, theta: float) -> Tensor:
        """Rotate pairs (i, i + half) of [N, heads, T, width] by position * theta^(-2 i / width)."""
        half = x.shape[-1] // 2
        angles = theta ** (-torch.arange(half).double() / half)
        angles = torch.arange(x.shape[2]).double()[:, None] * angles
        a, b = x[..., :half], x[..., half:]
        sin, cos = angles.sin(), angles.cos()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def buckets(self, table: str, queries: int, keys: int, both: bool) -> Tensor:
        """Return T5's bias of relative positions (Raffel et al. 2020), [heads, queries, keys]."""
        weight = self.weights[f"{table}.weight"]
        count, farthest = len(weight), getattr(self.config, "relative_attention_max_distance", 128)
        bias = torch.zeros(weight.shape[1], queries, keys).double()
        for i in range(queries):
            for j in range(keys):
                half, distance, bucket = count, j - i, 0
                if both:
                    half //= 2
                    bucket, distance = half * (distance > 0), abs(distance)
                else:
                    distance = max(0, -distance)
                if distance < half // 2:
                    bucket += distance
                else:
                    far = math.log(distance / (half // 2)) / math.log(farthest / (half // 2))
                    bucket += min(half - 1, half // 2 + int(far * (half - half // 2)))
                bias[:, i, j] = weight[bucket]
        return bias
