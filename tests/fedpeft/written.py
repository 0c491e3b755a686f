"""A transformer of every family written out from its equations: the oracle for the engine.

It reads the weights by names of its own, and calls ``change`` at each site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from literal import Change, Seen, unchanged, with_ones
from small_families import LLAMAS, PRE_NORM
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones.loading import Backbone

#: Blocks -> (keys, values) of a prefix, by "kv" or "cross_kv".
Prefix = Mapping[tuple[int, str], tuple[Tensor, Tensor]]

_BERT = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "attn_out": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "ffn_mid": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_LLAMA = {
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
_BART = {
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


def _t5(first: Mapping[str, str], decoder: bool) -> dict[str, str]:
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


class Written:
    """The weights of a backbone, and what a method changes."""

    def __init__(self, backbone: Backbone, change: Change, prefix: Prefix):
        self.model: Any = backbone.model
        self.weights = dict(self.model.named_parameters(remove_duplicate=False))
        self.config, self.family = self.model.config, backbone.shape.family
        self.pre = self.family in PRE_NORM
        self.rms = self.family in (*LLAMAS, "t5", "t5-gated")
        self.rotary = self.family in (*LLAMAS, "modernbert")
        self.heads, self.change, self.prefix = backbone.shape.heads, change, prefix
        self.bias: Tensor | None = None  # of relative positions, [heads, queries, keys]

    # --- modules -----------------------------------------------------------------------------

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

    # --- attention ---------------------------------------------------------------------------

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

    # --- blocks ------------------------------------------------------------------------------

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


def written_states(
    backbone: Backbone,
    ids: Tensor,
    mask: Tensor,
    types: Tensor,
    change: Change = unchanged,
    prompt: Tensor | None = None,
    prefix: Prefix | None = None,
) -> Tensor:
    """Return the last hidden states, [N, k + T, width] or of a decoder behind an encoder [N, T].

    ``prompt`` [k, width] comes before the embeddings of every text.
    """
    written = Written(backbone, change, prefix or {})
    longer = mask if prompt is None else with_ones(mask, len(prompt))
    return _FORWARD.get(backbone.shape.family, _encoder)(written, ids, longer, types, prompt)


def _prompted(hidden: Tensor, prompt: Tensor | None) -> Tensor:
    if prompt is None:
        return hidden
    return torch.cat([prompt.expand(len(hidden), -1, -1), hidden], dim=1)


def _encoder(w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None) -> Tensor:
    tables = {name: w.weights.get(f"embeddings.{name}_embeddings.weight") for name in (
        "word", "position", "token_type")}  # fmt: skip
    hidden = w.change("words", 0, tables["word"][ids], {})
    if tables["position"] is not None:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        if w.family in ("roberta", "xlm-roberta", "mpnet"):
            places = (ids != 1).long().cumsum(1) * (ids != 1) + 1
        hidden = hidden + tables["position"][places]
    if tables["token_type"] is not None and w.config.type_vocab_size:
        hidden = hidden + tables["token_type"][types]
    hidden = w.change("embed_norm", 0, w.norm(hidden, "embeddings.LayerNorm"), {})
    if "embeddings_project.weight" in w.weights:
        weight, bias = w.matrix("embeddings_project", "")
        hidden = w.change("embed_project", 0, hidden @ weight.T + bias, {})
    if w.family.startswith("deberta"):
        hidden = hidden * mask[..., None]
    hidden = _prompted(hidden, prompt)
    names, path = dict(_BERT), "encoder.layer"
    if w.family == "mpnet":
        names |= {name: f"attention.attn.{name}" for name in "qkv"}
        names |= {"attn_out": "attention.attn.o", "attn_norm": "attention.LayerNorm"}
        size = hidden.shape[1]
        w.bias = w.buckets("encoder.relative_attention_bias", size, size, both=True)
    if w.family == "distilbert":
        path = "transformer.layer"
        names = {name: f"attention.{name}_lin" for name in "qkv"} | {
            "attn_out": "attention.out_lin",
            "attn_norm": "sa_layer_norm",
            "ffn_mid": "ffn.lin1",
            "ffn_out": "ffn.lin2",
            "ffn_norm": "output_layer_norm",
        }
    return w.run(Stack(path, names), hidden, mask[:, None])


def _modernbert(
    w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None
) -> Tensor:
    words = w.change("words", 0, w.weights["embeddings.tok_embeddings.weight"][ids], {})
    hidden = w.change("embed_norm", 0, w.norm(words, "embeddings.norm"), {})
    names = dict.fromkeys("qkv", "attn.Wqkv") | {
        "attn_out": "attn.Wo",
        "attn_norm": "attn_norm",
        "ffn_mid": "mlp.Wi",
        "ffn_factor": "mlp.Wi",
        "ffn_out": "mlp.Wo",
        "ffn_norm": "mlp_norm",
    }
    # Blocks 0, 2, ... attend to all, the others within local_attention / 2 on either side.
    stack = Stack("layers", names, window={1: w.config.local_attention // 2 + 1})
    hidden = w.run(stack, _prompted(hidden, prompt), mask[:, None])
    return w.change("final_norm", 0, w.norm(hidden, "final_norm"), {})


def _gpt2(w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None) -> Tensor:
    hidden = _prompted(w.weights["wte.weight"][ids], prompt)
    hidden = hidden + w.weights["wpe.weight"][: hidden.shape[1]]
    names = dict.fromkeys("qkv", "attn.c_attn") | {
        "attn_out": "attn.c_proj",
        "attn_norm": "ln_1",
        "ffn_mid": "mlp.c_fc",
        "ffn_out": "mlp.c_proj",
        "ffn_norm": "ln_2",
    }
    hidden = w.run(Stack("h", names, causal=True), hidden, mask[:, None])
    return w.change("final_norm", 0, w.norm(hidden, "ln_f"), {})


def _llama(w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None) -> Tensor:
    hidden = _prompted(w.weights["embed_tokens.weight"][ids], prompt)
    window = w.config.sliding_window if w.family == "mistral" else 0
    windows = dict.fromkeys(range(w.config.num_hidden_layers), window)
    hidden = w.run(Stack("layers", _LLAMA, causal=True, window=windows), hidden, mask[:, None])
    return w.change("final_norm", 0, w.norm(hidden, "norm"), {})


def _shifted(w: Written, ids: Tensor) -> Tensor:
    rows = []
    for row in ids.tolist():
        # mBART starts with the text's last token, its language; the others with a fixed one.
        text = [token for token in row if token != 1]
        first = text[-1] if w.family == "mbart" else w.config.decoder_start_token_id
        rows.append([first, *row[:-1]])
    return torch.tensor(rows)


def _bart(w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None) -> Tensor:
    scale = math.sqrt(w.config.d_model) if w.config.scale_embedding else 1.0

    def embedded(side: str, ids: Tensor, site: str) -> Tensor:
        places = w.weights[f"{side}.embed_positions.weight"][2 : 2 + ids.shape[1]]
        hidden = scale * w.weights["shared.weight"][ids] + places
        return w.change(site, 0, w.norm(hidden, f"{side}.layernorm_embedding"), {})

    hidden = _prompted(embedded("encoder", ids, "embed_norm"), prompt)
    states = w.run(Stack("encoder.layers", _BART), hidden, mask[:, None])
    if w.family == "mbart":
        states = w.change("encoder_norm", 0, w.norm(states, "encoder.layer_norm"), {})
    hidden = embedded("decoder", _shifted(w, ids), "decoder_embed_norm")
    stack = Stack("decoder.layers", _BART, first=len(w.model.encoder.layers), causal=True)
    all_tokens = torch.ones_like(ids)[:, None]
    hidden = w.run(stack, hidden, all_tokens, (states, mask[:, None]))
    if w.family == "mbart":
        hidden = w.change("final_norm", 0, w.norm(hidden, "decoder.layer_norm"), {})
    return hidden


def _t5_states(
    w: Written, ids: Tensor, mask: Tensor, types: Tensor, prompt: Tensor | None
) -> Tensor:
    first = {"ffn_mid": "wi"}
    if w.family == "t5-gated":
        first = {"ffn_mid": "wi_0", "ffn_factor": "wi_1"}
    table = "{}.block.0.layer.0.SelfAttention.relative_attention_bias"
    hidden = _prompted(w.weights["shared.weight"][ids], prompt)
    size = hidden.shape[1]
    w.bias = w.buckets(table.format("encoder"), size, size, both=True)
    states = w.run(Stack("encoder.block", _t5(first, False)), hidden, mask[:, None])
    states = w.change("encoder_norm", 0, w.norm(states, "encoder.final_layer_norm"), {})
    hidden, size = w.weights["shared.weight"][_shifted(w, ids)], ids.shape[1]
    w.bias = w.buckets(table.format("decoder"), size, size, both=False)
    stack = Stack("decoder.block", _t5(first, True), len(w.model.encoder.block), causal=True)
    hidden = w.run(stack, hidden, torch.ones_like(ids)[:, None], (states, mask[:, None]))
    return w.change("final_norm", 0, w.norm(hidden, "decoder.final_layer_norm"), {})


_FORWARD = {
    "modernbert": _modernbert,
    "gpt2": _gpt2,
    **dict.fromkeys(LLAMAS, _llama),
    "bart": _bart,
    "mbart": _bart,
    "t5": _t5_states,
    "t5-gated": _t5_states,
}
