"""Sizes of backbones, known without loading weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from fedpeft.backbones.families import BLOCK

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class BackboneShape:
    """Sizes of a backbone, an encoder without pooler."""

    family: str
    layers: int
    width: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    types: int
    padding: int  # id of the padding token

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text."""
        # RoBERTa's positions start after the padding token's id.
        return self.positions - (self.padding + 1 if self.family == "roberta" else 0)

    @property
    def parameters(self) -> int:
        """Number of weights of the backbone."""
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
        shapes: dict[str, tuple[int, ...]] = {
            f"embeddings.{name}_embeddings.weight": (rows, width) for name, rows in tables.items()
        }
        norms = ["embeddings.LayerNorm"]
        for layer in range(self.layers):
            block = BLOCK.format(layer=layer)
            for name, shape in linears.items():
                shapes[f"{block}.{name}.weight"] = shape
                shapes[f"{block}.{name}.bias"] = shape[:1]
            norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
        for norm in norms:
            shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
        return shapes


#: Sizes of common backbones, so that tables need no download.
KNOWN_SHAPES = {
    "tiny": BackboneShape("roberta", 2, 32, 4, 64, 325, 132, 1, 1),
    "minilm": BackboneShape("bert", 6, 384, 12, 1536, 30_522, 512, 2, 0),
    "roberta-base": BackboneShape("roberta", 12, 768, 12, 3072, 50_265, 514, 1, 1),
    "roberta-large": BackboneShape("roberta", 24, 1024, 16, 4096, 50_265, 514, 1, 1),
    "distilroberta-base": BackboneShape("roberta", 6, 768, 12, 3072, 50_265, 514, 1, 1),
    "bert-base-cased": BackboneShape("bert", 12, 768, 12, 3072, 28_996, 512, 2, 0),
    "bert-base-uncased": BackboneShape("bert", 12, 768, 12, 3072, 30_522, 512, 2, 0),
    "bert-large-cased": BackboneShape("bert", 24, 1024, 16, 4096, 28_996, 512, 2, 0),
    "bert-large-uncased": BackboneShape("bert", 24, 1024, 16, 4096, 30_522, 512, 2, 0),
    "bert-base-multilingual-cased": BackboneShape("bert", 12, 768, 12, 3072, 119_547, 512, 2, 0),
}


def shape_of_config(config: PretrainedConfig) -> BackboneShape:
    """Return the sizes in a model's configuration."""
    return BackboneShape(
        config.model_type,
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
        config.type_vocab_size,
        config.pad_token_id,
    )


def layer_of(weight: str) -> int:
    """Return the layer of a weight: 0 for the embeddings, otherwise 1 + block."""
    parts = weight.split(".")
    return int(parts[2]) + 1 if parts[0] == "encoder" else 0
