"""Sizes of backbones, known without loading weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from fedpeft.backbones.families import FAMILIES, Family, Site, Stack, without_cross
from fedpeft.backbones.families.bert import BLOCK
from fedpeft.errors import UserError


@dataclass(frozen=True)
class BackboneShape:
    """Sizes of a backbone: an encoder, a decoder or both, without pooler and output layer.

    Attributes:
        family: key of ``FAMILIES``.
        layers: number of blocks. Blocks are counted from 0 in the order in which they are computed,
            so those of an encoder come before those of its decoder.
        width: size of a hidden state.
        heads: number of attention heads.
        intermediate: width of the feed-forward network.
        vocabulary: number of tokens.
        positions: number of positions.
        types: number of token types; 1 = none.
        padding: id of the padding token, -1 if there is none.
        decoder_layers: number of the last blocks, which belong to a decoder behind an encoder.
        head_width: size of an attention head; 0 = width / heads.
        key_heads: number of heads of keys and values; 0 = heads.
        embedding_width: size of a word's embedding; 0 = width.
        config: transformers' configuration as JSON, "" if ``weights`` are known without it.
    """

    family: str
    layers: int
    width: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    types: int
    padding: int
    decoder_layers: int = 0
    head_width: int = 0
    key_heads: int = 0
    embedding_width: int = 0
    config: str = field(default="", compare=False, repr=False)

    @property
    def sites(self) -> Family:
        """The family's map of sites."""
        return FAMILIES[self.family]

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text."""
        # RoBERTa's positions start after the padding token's id.
        return self.positions - (self.padding + 1 if self.sites.offset else 0)

    @property
    def first_layers(self) -> int:
        """Number of blocks without those of a decoder behind an encoder."""
        return self.layers - self.decoder_layers

    @property
    def parameters(self) -> int:
        """Number of weights of the backbone."""
        return sum(prod(shape) for shape in self.weights.values())

    @cached_property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, from the embeddings to the last block."""
        return _weights_of_config(self) if self.config else _weights_of_bert(self)

    def stack(self, layer: int) -> tuple[Stack, int]:
        """Return the stack of a block, and the block's index in it."""
        stacks = self.sites.stacks
        inside = layer - self.first_layers
        return (stacks[-1], inside) if inside >= 0 else (stacks[0], layer)

    def place(self, site: str, layer: int) -> Site:
        """Return where a site of a block is; ``layer`` is ignored outside the blocks.

        Raises:
            KeyError: no such site.
        """
        if site in self.sites.outer:
            return self.sites.outer[site]
        stack, inside = self.stack(layer)
        return stack.sites[site].at(inside)

    def places(
        self, names: Iterable[str], layers: Iterable[int] | None = None
    ) -> list[tuple[int, str]]:
        """Return (block, site) of each site in some blocks, in the order of the computation.

        Sites of the attention are those of all attentions of a block: "q" stands for "q" and
        "cross_q" in a decoder behind an encoder.

        Args:
            names: names of sites in a block.
            layers: the blocks; None = all.

        Raises:
            UserError: the family has no such site.
        """
        names = [*names]
        for name in names:
            self.require(name)
        return [
            (layer, site)
            for layer in (range(self.layers) if layers is None else layers)
            for site in self.stack(layer)[0].sites
            if without_cross(site) in names
        ]

    def require(self, name: str) -> None:
        """Raise UserError if the family has no site of this name."""
        if name in self.sites.outer or name in self.sites.stacks[0].sites:
            return
        why = self.sites.missing.get(name, "")
        raise UserError(
            f"{self.family} backbones have no site '{name}'{': ' * bool(why)}{why}; choose another "
            f"method or setting"
        )

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return sites once each, in the order of the computation."""
        wanted = {*names}
        every = [*self.sites.outer, *(site for stack in self.sites.stacks for site in stack.sites)]
        last = [*self.sites.outer, *self.sites.stacks[-1].sites]
        return tuple(site for site in dict.fromkeys([*last, *every]) if site in wanted)

    def after(self, part: str) -> str:
        """Return where to add to the state after a sub-layer, "attn" or "ffn".

        That is the sub-layer's LayerNorm, or without one its output before the residual sum.
        """
        return f"{part}_out" if self.sites.pre_norm else f"{part}_norm"

    def outputs(self, site: str) -> int:
        """Return the width of the representation at a site."""
        name = without_cross(site)
        inner = self.head_width or self.width // self.heads
        return {
            "q": self.heads * inner,
            "heads": self.heads * inner,
            "k": (self.key_heads or self.heads) * inner,
            "v": (self.key_heads or self.heads) * inner,
            "kv": (self.key_heads or self.heads) * inner,
            "ffn_mid": self.intermediate,
            "ffn_factor": self.intermediate,
            "words": self.embedding_width or self.width,
            "embed_norm": self.embedding_width or self.width,
        }.get(name, self.width)

    def inputs(self, site: str) -> int:
        """Return the width of the input of a site's linear layer."""
        source = {"attn_out": "heads", "ffn_out": "ffn_mid"}
        return self.outputs(source.get(without_cross(site), "attn_in"))

    def has(self, site: str, layer: int, weight: str) -> bool:
        """Return whether a site's module has a "weight" or a "bias" that changes its output."""
        place = self.place(site, layer)
        return place.side == "output" and f"{place.path}.{weight}" in self.weights

    def layer_of(self, weight: str) -> int:
        """Return the layer of a weight: 0 outside the blocks, otherwise 1 + block."""
        for index, stack in enumerate(self.sites.stacks):
            start, _, _ = stack.path.partition("{layer}")
            if weight.startswith(start):
                inside = int(weight.removeprefix(start).partition(".")[0])
                return 1 + inside + (self.first_layers if index else 0)
        return 0


def _weights_of_config(shape: BackboneShape) -> dict[str, tuple[int, ...]]:
    """Return the weights of a model that transformers makes without memory for them."""
    import torch
    from transformers import AutoConfig, AutoModel

    values = json.loads(shape.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModel.from_config(config, **shape.sites.options)
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _weights_of_bert(shape: BackboneShape) -> dict[str, tuple[int, ...]]:
    """Return the weights of BERT and RoBERTa.

    Their order is part of the task vector of full fine-tuning.
    """
    width, middle = shape.width, shape.intermediate
    tables = {"word": shape.vocabulary, "position": shape.positions, "token_type": shape.types}
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
    for layer in range(shape.layers):
        block = BLOCK.format(layer=layer)
        for name, sizes in linears.items():
            shapes[f"{block}.{name}.weight"] = sizes
            shapes[f"{block}.{name}.bias"] = sizes[:1]
        norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
    for norm in norms:
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    return shapes
