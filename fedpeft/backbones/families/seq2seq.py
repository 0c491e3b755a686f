"""Encoder-decoders: BART, mBART and T5.

Blocks are counted through encoder and decoder. The head reads the decoder's state at the text's
last token, its end-of-sequence token, and the decoder's input is the text shifted by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedpeft.backbones.families.base import NORMS_FIRST, Family, Site, Stack, in_cross

_NO_TEMPLATE = {"words": "encoder and decoder read the same words"}


def _bart_attention(attention: str, pre_norm: bool) -> dict[str, Site]:
    """Return the sites of an attention and its LayerNorm."""
    norm = {"attn_norm": Site(f"{attention}_layer_norm")}
    sites = {
        "attn_in": Site(f"{attention}.q_proj", "input"),
        "q": Site(f"{attention}.q_proj"),
        "k": Site(f"{attention}.k_proj"),
        "v": Site(f"{attention}.v_proj"),
        "kv": Site(attention),
        "heads": Site(f"{attention}.out_proj", "input"),
        "attn_out": Site(f"{attention}.out_proj"),
    }
    return {**norm, **sites} if pre_norm else {**sites, **norm}


def _bart_ffn(block: str, pre_norm: bool) -> dict[str, Site]:
    norm = f"{block}.final_layer_norm"
    sites = {
        "ffn_in": Site(f"{block}.fc1", "input"),
        "ffn_mid": Site(f"{block}.fc1"),
        "ffn_out": Site(f"{block}.fc2"),
    }
    if pre_norm:
        return {"ffn_norm": Site(norm), **sites}
    return {**sites, "ffn_sum": Site(norm, "input"), "ffn_norm": Site(norm)}


def _bart_stacks(pre_norm: bool) -> tuple[Stack, Stack]:
    encoder, decoder = "encoder.layers.{layer}", "decoder.layers.{layer}"
    own = _bart_attention(f"{encoder}.self_attn", pre_norm)
    decoding = _bart_attention(f"{decoder}.self_attn", pre_norm)
    cross = _crossed(_bart_attention(f"{decoder}.encoder_attn", pre_norm))
    return (
        Stack(encoder, {**own, **_bart_ffn(encoder, pre_norm)}),
        Stack(decoder, {**decoding, **cross, **_bart_ffn(decoder, pre_norm)}),
    )


def _crossed(sites: Mapping[str, Site]) -> dict[str, Site]:
    return {in_cross(name): site for name, site in sites.items()}


BART = Family(
    outer={
        "embed_norm": Site("encoder.layernorm_embedding"),
        "embeddings": Site("encoder.layernorm_embedding"),
        "decoder_embed_norm": Site("decoder.layernorm_embedding"),
    },
    stacks=_bart_stacks(pre_norm=False),
    reads_last=True,
    sizes={
        "layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "intermediate": "encoder_ffn_dim",
    },
    equal=(
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("encoder_attention_heads", "decoder_attention_heads"),
    ),
    configuration=("activation_function", "scale_embedding", "decoder_start_token_id"),
    early_mask=True,
    missing=_NO_TEMPLATE,
)
MBART = replace(
    BART,
    starts="last",  # transformers' own code works for a fixed number of texts, which ONNX has not
    outer={
        **BART.outer,
        "encoder_norm": Site("encoder.layer_norm"),
        "final_norm": Site("decoder.layer_norm"),
    },
    stacks=_bart_stacks(pre_norm=True),
    pre_norm=True,
    missing={**_NO_TEMPLATE, **NORMS_FIRST},
)


def _t5_attention(part: str, attention: str) -> dict[str, Site]:
    path = f"{part}.{attention}"
    return {
        "attn_norm": Site(f"{part}.layer_norm"),
        "attn_in": Site(f"{path}.q", "input"),
        "q": Site(f"{path}.q"),
        "k": Site(f"{path}.k"),
        "v": Site(f"{path}.v"),
        "kv": Site(path),
        "heads": Site(f"{path}.o", "input"),
        "attn_out": Site(f"{path}.o"),
    }


def _t5_ffn(part: str, gated: bool) -> dict[str, Site]:
    path = f"{part}.DenseReluDense"
    first = f"{path}.wi_0" if gated else f"{path}.wi"
    return {
        "ffn_norm": Site(f"{part}.layer_norm"),
        "ffn_in": Site(first, "input"),
        "ffn_mid": Site(first),
        **({"ffn_factor": Site(f"{path}.wi_1")} if gated else {}),
        "ffn_out": Site(f"{path}.wo"),
    }


def _t5_stacks(gated: bool) -> tuple[Stack, Stack]:
    encoder, decoder = "encoder.block.{layer}", "decoder.block.{layer}"
    own = _t5_attention(f"{encoder}.layer.0", "SelfAttention")
    decoding = _t5_attention(f"{decoder}.layer.0", "SelfAttention")
    cross = _crossed(_t5_attention(f"{decoder}.layer.1", "EncDecAttention"))
    return (
        Stack(encoder, {**own, **_t5_ffn(f"{encoder}.layer.1", gated)}),
        Stack(decoder, {**decoding, **cross, **_t5_ffn(f"{decoder}.layer.2", gated)}),
    )


T5 = Family(
    outer={
        "embeddings": Site("encoder.embed_tokens"),
        "encoder_norm": Site("encoder.final_layer_norm"),
        "final_norm": Site("decoder.final_layer_norm"),
    },
    stacks=_t5_stacks(gated=False),
    pre_norm=True,
    reads_last=True,
    sizes={
        "layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "intermediate": "d_ff",
        "head_width": "d_kv",
        "positions": "n_positions",
    },
    configuration=(
        "feed_forward_proj",
        "layer_norm_epsilon",
        "relative_attention_max_distance",
        "decoder_start_token_id",
    ),
    starts="token",
    missing={**_NO_TEMPLATE, **NORMS_FIRST},
)
FAMILIES = {
    "bart": BART,
    "mbart": MBART,
    "t5": T5,
    "t5-gated": replace(T5, stacks=_t5_stacks(gated=True)),
}
