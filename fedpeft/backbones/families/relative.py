"""MPNet and DeBERTa, whose attention does not use transformers' attention interface.

Methods that change the attention itself are missing. In DeBERTa, the matrices of queries and keys
also project positions, which belong to no example.
"""

from __future__ import annotations

from fedpeft.backbones.families.base import Family, Site, Stack
from fedpeft.backbones.families.bert import BLOCK, EMBEDDINGS

_NO_INTERFACE = {"kv": "its attention does not use transformers' attention interface"}
_FFN = {
    "ffn_in": Site(f"{BLOCK}.intermediate.dense", "input"),
    "ffn_mid": Site(f"{BLOCK}.intermediate.dense"),
    "ffn_out": Site(f"{BLOCK}.output.dense"),
    "ffn_sum": Site(f"{BLOCK}.output.LayerNorm", "input"),
    "ffn_norm": Site(f"{BLOCK}.output.LayerNorm"),
}
_MPNET = f"{BLOCK}.attention.attn"
MPNET = Family(
    outer=EMBEDDINGS,
    stacks=(
        Stack(
            BLOCK,
            {
                "attn_in": Site(f"{_MPNET}.q", "input"),
                "q": Site(f"{_MPNET}.q"),
                "k": Site(f"{_MPNET}.k"),
                "v": Site(f"{_MPNET}.v"),
                "heads": Site(f"{_MPNET}.o", "input"),
                "attn_out": Site(f"{_MPNET}.o"),
                "attn_norm": Site(f"{BLOCK}.attention.LayerNorm"),
                **_FFN,
            },
        ),
    ),
    options={"add_pooling_layer": False},
    configuration=("relative_attention_num_buckets",),
    offset=True,
    missing=_NO_INTERFACE,
)

_HERE = f"{BLOCK}.attention"
_DEBERTA = {
    "heads": Site(f"{_HERE}.output.dense", "input"),
    "attn_out": Site(f"{_HERE}.output.dense"),
    "attn_norm": Site(f"{_HERE}.output.LayerNorm"),
    **_FFN,
}
_MASKED = "its embeddings are multiplied by the mask of the text, which a prompt makes longer"
_POSITIONS = "the same matrix projects positions"
_CONFIGURATION = (
    "relative_attention",
    "max_relative_positions",
    "position_buckets",
    "position_biased_input",
    "pos_att_type",
    "share_att_key",
    "norm_rel_ebd",
    "conv_act",
)
#: Embeddings of DeBERTa have no site for a prompt.
_WORDS = {name: site for name, site in EMBEDDINGS.items() if name != "embeddings"}
DEBERTA = Family(
    outer=_WORDS,
    stacks=(Stack(BLOCK, {"attn_in": Site(f"{_HERE}.self.in_proj", "input"), **_DEBERTA}),),
    configuration=_CONFIGURATION,
    missing={
        **_NO_INTERFACE,
        **dict.fromkeys(("q", "k", "v"), "one matrix projects them, mixed by heads"),
        "embeddings": _MASKED,
    },
)
DEBERTA_V2 = Family(
    outer=_WORDS,
    stacks=(
        Stack(
            BLOCK,
            {
                "attn_in": Site(f"{_HERE}.self.value_proj", "input"),
                "v": Site(f"{_HERE}.self.value_proj"),
                **_DEBERTA,
            },
        ),
    ),
    configuration=_CONFIGURATION,
    missing={**_NO_INTERFACE, "q": _POSITIONS, "k": _POSITIONS, "embeddings": _MASKED},
)
FAMILIES = {"mpnet": MPNET, "deberta": DEBERTA, "deberta-v2": DEBERTA_V2}
