"""Sites: the places in a transformer block that a method may change, and a backbone's weights.

A further architecture is one more map in ``FAMILIES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal


@dataclass(frozen=True)
class Site:
    """Where a site is: a module's path with ``{layer}``, and whether its input or output changes.

    At a site on the output side of a module with bias, a shift can be fused into that bias.
    """

    path: str
    side: Literal["input", "output"] = "output"

    def module(self, layer: int) -> str:
        """Return the path of the site's module in one block."""
        return self.path.format(layer=layer)


_BLOCK = "encoder.layer.{layer}"

#: A BERT block. RoBERTa's has the same module names, so one map serves both families.
BERT_SITES = {
    "words": Site("embeddings.word_embeddings"),
    "embed_norm": Site("embeddings.LayerNorm"),
    "embeddings": Site("embeddings"),
    "attn_in": Site(f"{_BLOCK}.attention.self.query", "input"),
    "q": Site(f"{_BLOCK}.attention.self.query"),
    "k": Site(f"{_BLOCK}.attention.self.key"),
    "v": Site(f"{_BLOCK}.attention.self.value"),
    "heads": Site(f"{_BLOCK}.attention.output.dense", "input"),  # concatenated, before W_o
    "attn_out": Site(f"{_BLOCK}.attention.output.dense"),  # before residual and LayerNorm
    "attn_norm": Site(f"{_BLOCK}.attention.output.LayerNorm"),
    "ffn_mid": Site(f"{_BLOCK}.intermediate.dense"),  # before the activation
    "ffn_out": Site(f"{_BLOCK}.output.dense"),  # before residual and LayerNorm
    "ffn_sum": Site(f"{_BLOCK}.output.LayerNorm", "input"),  # with the residual
    "ffn_norm": Site(f"{_BLOCK}.output.LayerNorm"),
}
FAMILIES = {"bert": BERT_SITES, "roberta": BERT_SITES}


@dataclass(frozen=True)
class BackboneShape:
    """The sizes a method needs to know of a backbone (an encoder without pooler)."""

    family: str
    layers: int
    width: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    types: int

    @property
    def parameters(self) -> int:
        """How many weights the whole backbone has."""
        return sum(prod(shape) for shape in self.weights.values())

    @cached_property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, from the embeddings to the last block."""
        width, middle = self.width, self.intermediate
        tables = {"word": self.vocabulary, "position": self.positions, "token_type": self.types}
        linears = {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "intermediate.dense": (middle, width),
            "output.dense": (width, middle),
        }
        found: dict[str, tuple[int, ...]] = {
            f"embeddings.{name}_embeddings.weight": (rows, width) for name, rows in tables.items()
        }
        norms = ["embeddings.LayerNorm"]
        for layer in range(self.layers):
            block = _BLOCK.format(layer=layer)
            for name, shape in linears.items():
                found[f"{block}.{name}.weight"] = shape
                found[f"{block}.{name}.bias"] = shape[:1]
            norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
        for norm in norms:
            found |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
        return found


def layer_of(weight: str) -> int:
    """Return 0 for a weight of the embeddings, else its block and one."""
    parts = weight.split(".")
    return int(parts[2]) + 1 if parts[0] == "encoder" else 0
