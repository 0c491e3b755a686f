"""The blocks of a transformer written out: attention, residual sums, and the sites of changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from literal import Change, Seen
from torch import Tensor
from torch.nn import functional
from written_modules import Modules

from fedpeft.backbones.loading import Backbone

#: Blocks -> (keys, values) of a prefix, by "kv" or "cross_kv".
Prefix = Mapping[tuple[int, str], tuple[Tensor, Tensor]]


@dataclass
class Stack:
    """A written-out stack of blocks.

    Attributes:
        blocks: path of the blocks.
        names: site -> name of the module in a block.
        first: index of its first block among all blocks.
        causal: whether tokens attend only to earlier ones.
        window: by block, the distance from which tokens do not attend; 0 = none.
    """

    blocks: str
    names: Mapping[str, str]
    first: int = 0
    causal: bool = False
    window: Mapping[int, int] = field(default_factory=dict)


class Written(Modules):
    """The blocks of a backbone, and what a method changes in them."""

    def __init__(self, backbone: Backbone, change: Change, prefix: Prefix):
        super().__init__(backbone)
        self.change, self.prefix = change, prefix
        self.bias: Tensor | None = None  # of relative positions, [heads, queries, keys]

    def attention(
        self, stack: Stack, index: int, x: Tensor, source: Tensor, mask: Tensor, at: Any, kind: str
    ) -> Tensor:
        """Return the concatenated heads; ``kind`` is "" or "cross_"."""
        path, layer = f"{stack.blocks}.{index}", stack.first + index
        parts = {}
        for name in "qkv":
            given = x if name == "q" else source
            weight, bias = self.matrix(f"{path}.{stack.names[kind + name]}", name)
            parts[name] = at(kind + name, given @ weight.T + bias, given)
        width = self.model.config.d_kv if self.family[:2] == "t5" else None
        width = width or parts["q"].shape[-1] // self.heads
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts.values())
        if self.family == "qwen3":
            q = self.norm(q, f"{path}.self_attn.q_norm")
            k = self.norm(k, f"{path}.self_attn.k_norm")
        if self.rotary:
            rope = self.config.rope_parameters
            local = stack.window.get(index) and self.family == "modernbert"
            rope = rope.get("sliding_attention" if local else "full_attention", rope)
            q, k = self.rotated(q, rope["rope_theta"]), self.rotated(k, rope["rope_theta"])
        bias = torch.zeros(1, q.shape[2], k.shape[2]).double()
        if self.bias is not None and not kind:
            bias = self.bias
        allowed = self.allowed(stack, index, q.shape[2], k.shape[2], kind) & mask.bool()
        if (layer, f"{kind}kv") in self.prefix:
            keys, values = (
                part.unflatten(-1, (-1, width)).transpose(0, 1).expand(len(q), -1, -1, -1)
                for part in self.prefix[layer, f"{kind}kv"]
            )
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
            extra = keys.shape[2]
            bias = functional.pad(bias, (extra, 0))
            allowed = functional.pad(allowed, (extra, 0), value=True)
        k, v = (part.repeat_interleave(self.heads // part.shape[1], dim=1) for part in (k, v))
        scale = 1.0 if self.family[:2] == "t5" else 1 / math.sqrt(width)
        scores = scale * q @ k.transpose(-1, -2) + bias
        weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def allowed(self, stack: Stack, index: int, queries: int, keys: int, kind: str) -> Tensor:
        """Return which tokens may attend to which, bool [queries, keys]."""
        if kind:
            return torch.ones(queries, keys, dtype=torch.bool)
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        allowed = distance >= 0 if stack.causal else torch.ones_like(distance, dtype=torch.bool)
        window = stack.window.get(index)
        return allowed & (distance.abs() < window) if window else allowed

    def run(self, stack: Stack, x: Tensor, mask: Tensor, encoded: Any = None) -> Tensor:
        """Pass hidden states [N, T, width] through all blocks; ``encoded`` = (states, mask)."""
        count = len(self.model.get_submodule(stack.blocks))
        for index in range(count):
            x = self.block(stack, index, x, mask, encoded)
        return x

    def block(self, stack: Stack, index: int, x: Tensor, mask: Tensor, encoded: Any) -> Tensor:
        path, layer = f"{stack.blocks}.{index}", stack.first + index
        seen: Seen = {}

        def at(site: str, value: Tensor, given: Tensor | None = None) -> Tensor:
            if given is not None:
                seen[f"{site} <"] = given
            seen[site] = self.change(site, layer, value, seen)
            return seen[site]

        def norm(site: str, value: Tensor) -> Tensor:
            name = f"{path}.{stack.names[site]}"
            if site == "ffn_norm" and not self.pre:
                seen["normed_sum"] = self.norm(value, name)
                value = at("ffn_sum", value)
            return at(site, self.norm(value, name), value)

        def linear(site: str, value: Tensor) -> Tensor:
            weight, bias = self.matrix(f"{path}.{stack.names[site]}", site)
            return at(site, value @ weight.T + bias, value)

        def sub_layer(name: str, x: Tensor, compute: Any) -> Tensor:
            if self.pre:
                return x + compute(norm(f"{name}_norm", x))
            return norm(f"{name}_norm", x + compute(x))

        def attend(x: Tensor) -> Tensor:
            if self.family.startswith("deberta"):  # opaque: no site inside it changes
                heads = self.disentangled(path, x, mask)
                seen["q <"] = x
            else:
                heads = self.attention(stack, index, x, x, mask, at, "")
            return linear("attn_out", at("heads", heads))

        def cross(x: Tensor) -> Tensor:
            states, other = encoded
            heads = self.attention(stack, index, x, states, other, at, "cross_")
            return linear("cross_out", at("cross_heads", heads))

        def feed_forward(x: Tensor) -> Tensor:
            inner = self.activation(linear("ffn_mid", x))
            if "ffn_factor" in stack.names:
                inner = inner * linear("ffn_factor", x)
            return linear("ffn_out", inner)

        x = sub_layer("attn", x, attend)
        if encoded is not None:
            x = sub_layer("cross", x, cross)
        return sub_layer("ffn", x, feed_forward)

    def disentangled(self, path: str, x: Tensor, mask: Tensor) -> Tensor:
        """Return DeBERTa's concatenated heads, from its own module."""
        encoder = self.model.encoder
        return self.model.get_submodule(f"{path}.attention.self")(
            x,
            encoder.get_attention_mask(mask[:, 0]),
            relative_pos=encoder.get_rel_pos(x),
            rel_embeddings=encoder.get_rel_embedding(),
        )[0]
