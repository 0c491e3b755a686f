"""Decoders: GPT-2, and Llama with those that have its module names (Qwen2, Qwen3, Mistral).

The head reads the last token of a text, and a prompt takes the first positions.
"""

from __future__ import annotations

from fedpeft.backbones.families.base import NORMS_FIRST, Family, Site, Stack

_GPT = "h.{layer}"
_QKV = f"{_GPT}.attn.c_attn"
GPT2 = Family(
    outer={"embeddings": Site("wte"), "final_norm": Site("ln_f")},
    stacks=(
        Stack(
            _GPT,
            {
                "attn_norm": Site(f"{_GPT}.ln_1"),
                "attn_in": Site(_QKV, "input"),
                "q": Site(_QKV, part=(0, 3), transposed=True),
                "k": Site(_QKV, part=(1, 3), transposed=True),
                "v": Site(_QKV, part=(2, 3), transposed=True),
                "kv": Site(f"{_GPT}.attn"),
                "heads": Site(f"{_GPT}.attn.c_proj", "input"),
                "attn_out": Site(f"{_GPT}.attn.c_proj", transposed=True),
                "ffn_norm": Site(f"{_GPT}.ln_2"),
                "ffn_in": Site(f"{_GPT}.mlp.c_fc", "input"),
                "ffn_mid": Site(f"{_GPT}.mlp.c_fc", transposed=True),
                "ffn_out": Site(f"{_GPT}.mlp.c_proj", transposed=True),
            },
        ),
    ),
    pre_norm=True,
    reads_last=True,
    sizes={"intermediate": "n_inner"},
    configuration=(
        "activation_function",
        "layer_norm_epsilon",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
    ),
    counts_prompt=True,
    embeds=True,
    missing={**NORMS_FIRST, "words": "a decoder has no mask to read"},
)

_LLAMA = "layers.{layer}"
_ATTN, _MLP = f"{_LLAMA}.self_attn", f"{_LLAMA}.mlp"
LLAMA = Family(
    outer={"embeddings": Site("embed_tokens"), "final_norm": Site("norm")},
    stacks=(
        Stack(
            _LLAMA,
            {
                "attn_norm": Site(f"{_LLAMA}.input_layernorm"),
                "attn_in": Site(f"{_ATTN}.q_proj", "input"),
                "q": Site(f"{_ATTN}.q_proj"),
                "k": Site(f"{_ATTN}.k_proj"),
                "v": Site(f"{_ATTN}.v_proj"),
                "kv": Site(_ATTN),
                "heads": Site(f"{_ATTN}.o_proj", "input"),
                "attn_out": Site(f"{_ATTN}.o_proj"),
                "ffn_norm": Site(f"{_LLAMA}.post_attention_layernorm"),
                "ffn_in": Site(f"{_MLP}.gate_proj", "input"),
                "ffn_mid": Site(f"{_MLP}.gate_proj"),
                "ffn_factor": Site(f"{_MLP}.up_proj"),
                "ffn_out": Site(f"{_MLP}.down_proj"),
            },
        ),
    ),
    pre_norm=True,
    reads_last=True,
    configuration=(
        "rms_norm_eps",
        "num_key_value_heads",
        "head_dim",
        "rope_parameters",
        "sliding_window",
        "layer_types",
    ),
    counts_prompt=True,
    missing={**NORMS_FIRST, "words": "a decoder has no mask to read"},
)
FAMILIES = {
    "gpt2": GPT2,
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral"), LLAMA),
}
