"""A small random float64 backbone of every family, with no weight left at 0 or 1."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerBase,
)

from fedpeft.backbones.attention import SDPA
from fedpeft.backbones.families import FAMILIES
from fedpeft.backbones.known import shape_of_config
from fedpeft.backbones.language import prepared
from fedpeft.backbones.loading import Backbone
from fedpeft.backbones.tiny import tiny_tokenizer

_BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 70,
}
_RELATIVE = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_LLAMA = {**_BERT, "num_attention_heads": 4, "num_key_value_heads": 2}
_BART = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 70,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5 = {
    "d_model": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "d_kv": 5,
    "d_ff": 40,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 1,
}
#: Sizes are no round numbers: blocks, heads, key heads and widths differ from each other.
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_BERT, "type_vocab_size": 2},
    "roberta": {**_BERT, "type_vocab_size": 1},
    "xlm-roberta": {**_BERT, "type_vocab_size": 1},
    "electra": {**_BERT, "embedding_size": 16},
    "distilbert": {
        "dim": 24,
        "n_layers": 3,
        "n_heads": 3,
        "hidden_dim": 40,
        "max_position_embeddings": 70,
    },
    "modernbert": {**_BERT, "local_attention": 6, "global_attn_every_n_layers": 2},
    "mpnet": {**_BERT, "relative_attention_num_buckets": 32},
    "deberta": _RELATIVE,
    "deberta-v2": {**_RELATIVE, "share_att_key": True, "position_buckets": 8},
    "gpt2": {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 40, "n_positions": 70},
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": {**_LLAMA, "head_dim": 8},
    "mistral": {**_LLAMA, "sliding_window": 5, "head_dim": None},
    "bart": _BART,
    "mbart": {**_BART, "scale_embedding": True},
    "t5": _T5,
    "t5-gated": {**_T5, "feed_forward_proj": "gated-gelu"},
}
LLAMAS = ("llama", "qwen2", "qwen3", "mistral")
#: Families that normalize before a sub-layer and not after the residual sum.
PRE_NORM = {*LLAMAS, "modernbert", "gpt2", "mbart", "t5", "t5-gated"}
#: Largest difference from float64: these families round to float32 inside (norms, rotations).
FLOAT32 = {*LLAMAS, "modernbert", "t5", "t5-gated", "deberta"}


def tolerance(family: str, expected: torch.Tensor | None = None) -> float:
    """Return the largest difference that a family's own float32 computations explain.

    It is relative to the largest number of ``expected``, if that is above 1.
    """
    largest = 1.0 if expected is None else max(1.0, float(expected.detach().abs().max()))
    return largest * (1e-5 if family in FLOAT32 else 1e-9)


@lru_cache
def small_tokenizer() -> PreTrainedTokenizerBase:
    """Return the tokenizer of the tiny backbone, one for all small backbones."""
    return tiny_tokenizer()


def small_config(family: str, **sizes: int) -> Any:
    """Return the configuration of a small backbone; ``sizes`` replace those of CONFIGS."""
    given = {**CONFIGS[family], "vocab_size": len(small_tokenizer()), **sizes}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return AutoConfig.for_model(family.removesuffix("-gated"), **given, **ids)


@lru_cache
def small_family(family: str, **sizes: int) -> Backbone:
    """Return a backbone of two or three blocks; ``sizes`` replace those of CONFIGS."""
    config = small_config(family, **sizes)
    torch.manual_seed(0)
    model: Any = AutoModel.from_config(config, **FAMILIES[family].options)
    model = _randomized(model)
    shape = shape_of_config(model.config)
    if shape.sites.attends:
        model.set_attn_implementation(SDPA)
    return Backbone(family, model, small_tokenizer(), shape, "", torch.device("cpu"))


@lru_cache
def small_language(family: str) -> Backbone:
    """Return a small backbone of a family that writes text, with its output embeddings."""
    small = small_family(family)
    auto = AutoModelForCausalLM
    if small.shape.sites.writes == "encoder-decoder":
        auto = AutoModelForSeq2SeqLM
    language = _randomized(auto.from_config(small.model.config))
    model = prepared(family, language, small.tokenizer, small.shape)
    return replace(small, model=model, language=language)


def _randomized(model: Any) -> Any:
    """Return the model in float64 with random weights."""
    draw = torch.Generator().manual_seed(0)
    model = model.double().eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        around = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
        around = around if name.endswith("weight") else 0.0
        weight.copy_(around + 0.2 * torch.randn(weight.shape, generator=draw).double())
    return model


#: Families that write text.
WRITING = [family for family in CONFIGS if FAMILIES[family].writes]
