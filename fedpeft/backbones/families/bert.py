"""BERT and the encoders that differ from it by names: RoBERTa, XLM-RoBERTa, ELECTRA, DistilBERT."""

from __future__ import annotations

from dataclasses import replace

from fedpeft.backbones.families.base import Family, Site, Stack

BLOCK = "encoder.layer.{layer}"

#: Sites of a block of BERT, RoBERTa, XLM-RoBERTa and ELECTRA, which have the same module names.
BERT_SITES = {
    "attn_in": Site(f"{BLOCK}.attention.self.query", "input"),
    "q": Site(f"{BLOCK}.attention.self.query"),
    "k": Site(f"{BLOCK}.attention.self.key"),
    "v": Site(f"{BLOCK}.attention.self.value"),
    "kv": Site(f"{BLOCK}.attention.self"),
    "heads": Site(f"{BLOCK}.attention.output.dense", "input"),  # concatenated, before W_o
    "attn_out": Site(f"{BLOCK}.attention.output.dense"),  # before residual and LayerNorm
    "attn_norm": Site(f"{BLOCK}.attention.output.LayerNorm"),
    "ffn_in": Site(f"{BLOCK}.intermediate.dense", "input"),
    "ffn_mid": Site(f"{BLOCK}.intermediate.dense"),  # before the activation
    "ffn_out": Site(f"{BLOCK}.output.dense"),  # before residual and LayerNorm
    "ffn_sum": Site(f"{BLOCK}.output.LayerNorm", "input"),  # with the residual
    "ffn_norm": Site(f"{BLOCK}.output.LayerNorm"),
}
EMBEDDINGS = {
    "words": Site("embeddings.word_embeddings"),
    "embed_norm": Site("embeddings.LayerNorm"),
    "embeddings": Site("embeddings"),
}
BERT = Family(
    outer=EMBEDDINGS,
    stacks=(Stack(BLOCK, BERT_SITES),),
    options={"add_pooling_layer": False},
    packs=True,
    resumes=True,
    example_weights=True,
)
ROBERTA = replace(BERT, offset=True)
#: Embeddings may be narrower than the blocks; a linear layer, which is missing otherwise, then
#: projects them.
ELECTRA = replace(
    BERT,
    outer={
        **EMBEDDINGS,
        "embed_project": Site("embeddings_project"),
        "embeddings": Site(BLOCK.format(layer=0), "input"),
    },
    sizes={"embedding_width": "embedding_size"},
    options={},
    early_mask=True,
)

_DISTIL = "transformer.layer.{layer}"
DISTILBERT = Family(
    outer=EMBEDDINGS,
    stacks=(
        Stack(
            _DISTIL,
            {
                "attn_in": Site(f"{_DISTIL}.attention.q_lin", "input"),
                "q": Site(f"{_DISTIL}.attention.q_lin"),
                "k": Site(f"{_DISTIL}.attention.k_lin"),
                "v": Site(f"{_DISTIL}.attention.v_lin"),
                "kv": Site(f"{_DISTIL}.attention"),
                "heads": Site(f"{_DISTIL}.attention.out_lin", "input"),
                "attn_out": Site(f"{_DISTIL}.attention.out_lin"),
                "attn_norm": Site(f"{_DISTIL}.sa_layer_norm"),
                "ffn_in": Site(f"{_DISTIL}.ffn.lin1", "input"),
                "ffn_mid": Site(f"{_DISTIL}.ffn.lin1"),
                "ffn_out": Site(f"{_DISTIL}.ffn.lin2"),
                "ffn_sum": Site(f"{_DISTIL}.output_layer_norm", "input"),
                "ffn_norm": Site(f"{_DISTIL}.output_layer_norm"),
            },
        ),
    ),
    sizes={"intermediate": "hidden_dim"},
    configuration=("activation",),
    packs=True,
    resumes=True,
    example_weights=True,
)
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
}
