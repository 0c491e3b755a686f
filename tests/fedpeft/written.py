"""A transformer of every family written out from its equations: the oracle for the engine.

It reads the weights by names of its own, and calls ``change`` at each site.
"""

from __future__ import annotations

import math

import torch
from literal import Change, unchanged, with_ones
from small_families import LLAMAS
from torch import Tensor
from written_blocks import Prefix, Stack, Written
from written_modules import BART, BERT, LLAMA, t5_names

from fedpeft.backbones.loading import Backbone


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
    names, path = dict(BERT), "encoder.layer"
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
    hidden = w.run(Stack("layers", LLAMA, causal=True, window=windows), hidden, mask[:, None])
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
    states = w.run(Stack("encoder.layers", BART), hidden, mask[:, None])
    if w.family == "mbart":
        states = w.change("encoder_norm", 0, w.norm(states, "encoder.layer_norm"), {})
    hidden = embedded("decoder", _shifted(w, ids), "decoder_embed_norm")
    stack = Stack("decoder.layers", BART, first=len(w.model.encoder.layers), causal=True)
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
    states = w.run(Stack("encoder.block", t5_names(first, False)), hidden, mask[:, None])
    states = w.change("encoder_norm", 0, w.norm(states, "encoder.final_layer_norm"), {})
    hidden, size = w.weights["shared.weight"][_shifted(w, ids)], ids.shape[1]
    w.bias = w.buckets(table.format("decoder"), size, size, both=False)
    stack = Stack("decoder.block", t5_names(first, True), len(w.model.encoder.block), causal=True)
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
