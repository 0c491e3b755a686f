"""Sites: the places in a transformer block that a method may change.

To add an architecture, add a map of its sites to ``FAMILIES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Site:
    """Location of a site: a module's path with ``{layer}``, and the side that changes.

    A shift of a module's output can be fused into the module's bias.
    """

    path: str
    side: Literal["input", "output"] = "output"

    def module(self, layer: int) -> str:
        """Return the path of the site's module in a block."""
        return self.path.format(layer=layer)


BLOCK = "encoder.layer.{layer}"

#: Sites of BERT and RoBERTa, which have the same module names.
BERT_SITES = {
    "words": Site("embeddings.word_embeddings"),
    "embed_norm": Site("embeddings.LayerNorm"),
    "embeddings": Site("embeddings"),
    "attn_in": Site(f"{BLOCK}.attention.self.query", "input"),
    "q": Site(f"{BLOCK}.attention.self.query"),
    "k": Site(f"{BLOCK}.attention.self.key"),
    "v": Site(f"{BLOCK}.attention.self.value"),
    "heads": Site(f"{BLOCK}.attention.output.dense", "input"),  # concatenated, before W_o
    "attn_out": Site(f"{BLOCK}.attention.output.dense"),  # before residual and LayerNorm
    "attn_norm": Site(f"{BLOCK}.attention.output.LayerNorm"),
    "ffn_mid": Site(f"{BLOCK}.intermediate.dense"),  # before the activation
    "ffn_out": Site(f"{BLOCK}.output.dense"),  # before residual and LayerNorm
    "ffn_sum": Site(f"{BLOCK}.output.LayerNorm", "input"),  # with the residual
    "ffn_norm": Site(f"{BLOCK}.output.LayerNorm"),
}
FAMILIES = {"bert": BERT_SITES, "roberta": BERT_SITES}
