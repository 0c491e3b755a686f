"""ModernBERT: normalized before its sub-layers, one matrix for q, k and v, a gated FFN."""

from __future__ import annotations

from fedpeft.backbones.families.base import NORMS_FIRST, Family, Site, Stack

_BLOCK = "layers.{layer}"
_QKV, _GATED = f"{_BLOCK}.attn.Wqkv", f"{_BLOCK}.mlp.Wi"

FAMILIES = {
    "modernbert": Family(
        outer={
            "words": Site("embeddings.tok_embeddings"),
            "embed_norm": Site("embeddings.norm"),
            "embeddings": Site("embeddings"),
            "final_norm": Site("final_norm"),
        },
        stacks=(
            Stack(
                _BLOCK,
                {
                    "attn_norm": Site(f"{_BLOCK}.attn_norm"),  # none in block 0
                    "attn_in": Site(_QKV, "input"),
                    "q": Site(_QKV, part=(0, 3)),
                    "k": Site(_QKV, part=(1, 3)),
                    "v": Site(_QKV, part=(2, 3)),
                    "kv": Site(f"{_BLOCK}.attn"),
                    "heads": Site(f"{_BLOCK}.attn.Wo", "input"),
                    "attn_out": Site(f"{_BLOCK}.attn.Wo"),
                    "ffn_norm": Site(f"{_BLOCK}.mlp_norm"),
                    "ffn_in": Site(_GATED, "input"),
                    "ffn_mid": Site(_GATED, part=(0, 2)),
                    "ffn_factor": Site(_GATED, part=(1, 2)),
                    "ffn_out": Site(f"{_BLOCK}.mlp.Wo"),
                },
            ),
        ),
        pre_norm=True,
        configuration=(
            "hidden_activation",
            "norm_eps",
            "layer_types",
            "local_attention",
            "rope_parameters",
        ),
        positions=True,
        missing=NORMS_FIRST,
    )
}
