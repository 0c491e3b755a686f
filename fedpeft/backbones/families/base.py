"""Sites: the places in a transformer that a method may change, and the families that map them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

#: Sites of a cross-attention have the names of the self-attention's with this before them.
CROSS = "cross_"
#: ``Family.missing`` of families that normalize before their sub-layers.
NORMS_FIRST = {"ffn_sum": "its norms come before the sub-layers, none after the residual sum"}


def in_cross(name: str) -> str:
    """Return the name of a site of the self-attention in a cross-attention: q, attn_out, ..."""
    return CROSS + name.removeprefix("attn_")


def without_cross(site: str) -> str:
    """Return the name that a site of a cross-attention has in the self-attention."""
    if not site.startswith(CROSS):
        return site
    name = site.removeprefix(CROSS)
    return f"attn_{name}" if name in ("in", "out", "norm") else name


@dataclass(frozen=True)
class Site:
    """Location of a site: a module's path with ``{layer}``, and the side that changes.

    A shift of a module's output can be fused into the module's bias.

    Attributes:
        path: path of the module in the model.
        side: whether the module's input or its output changes.
        part: index and number of the equal parts of a fused output, (1, 3) for k in a layer that
            computes q, k and v; (0, 1) = the whole output.
        transposed: whether the module stores its weight as [inputs, outputs].
    """

    path: str
    side: Literal["input", "output"] = "output"
    part: tuple[int, int] = (0, 1)
    transposed: bool = False

    def module(self, layer: int) -> str:
        """Return the path of the site's module in a block."""
        return self.path.format(layer=layer)

    def at(self, layer: int) -> Site:
        """Return this site in a block, with its module's path filled in."""
        return replace(self, path=self.module(layer))


@dataclass(frozen=True)
class Stack:
    """The blocks of an encoder or of a decoder.

    Attributes:
        path: path of a block with ``{layer}``.
        sites: the sites of a block in the order in which they are computed.
    """

    path: str
    sites: Mapping[str, Site]


@dataclass(frozen=True)
class Family:
    """The sites of an architecture of transformers, and its special features.

    Attributes:
        outer: sites outside the blocks.
        stacks: the encoder's or the decoder's blocks, or both: the encoder first.
        pre_norm: whether a sub-layer is normalized before it and not after the residual sum.
        reads_last: whether the head reads a text's last token by default, as in transformers'
            sequence classification: the first token does not see the others.
        sizes: names of sizes in transformers' configuration that differ from BERT's.
        equal: pairs of sizes in the configuration that must be equal.
        configuration: names in the configuration that determine a forward pass, besides those of
            every family.
        options: arguments of ``AutoModel.from_pretrained``.
        offset: whether positions start behind the padding token's id.
        counts_prompt: whether trained embeddings before a text have positions of their own.
        positions: whether positions are passed to the model, which would otherwise count only the
            text.
        early_mask: whether the model makes its mask before a prompt is inserted.
        embeds: whether a pass with a prompt starts from the embeddings of words.
        starts: the first of the decoder's tokens, which are passed to the model: "token" = the
            configuration's start token, "last" = the text's last one. The text's follow, shifted by
            one. "" = the model does this.
        packs: whether texts can pass through the blocks without their padding.
        resumes: whether a pass can start at any block.
        example_weights: whether Opacus can compute an example's gradient of every weight.
        missing: why a site is missing, by its name.
    """

    outer: Mapping[str, Site]
    stacks: tuple[Stack, ...]
    pre_norm: bool = False
    reads_last: bool = False
    sizes: Mapping[str, str] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    configuration: tuple[str, ...] = ()
    options: Mapping[str, bool] = field(default_factory=dict)
    offset: bool = False
    counts_prompt: bool = False
    positions: bool = False
    early_mask: bool = False
    embeds: bool = False
    starts: Literal["", "token", "last"] = ""
    packs: bool = False
    resumes: bool = False
    example_weights: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def writes(self) -> Literal["", "decoder", "encoder-decoder"]:
        """What writes text, if the architecture can; "" for an encoder."""
        if len(self.stacks) > 1:
            return "encoder-decoder"
        return "decoder" if self.reads_last else ""

    @property
    def attends(self) -> bool:
        """Whether its attention uses transformers' attention interface."""
        return "kv" in self.stacks[0].sites
