"""Where the first change is, what lies below it, and forward passes that begin there.

Below the first modification a frozen network does the same for every task vector, so what it
makes of a text there can be computed once and kept. A forward pass can begin at three places:

- ``attention``: before the residual of a block's attention: what its output layer makes, and the
  residual beside it; two representations.
- ``ffn``: the same of a block's feed-forward network; two representations.
- ``end``: behind the last block, where nothing in the network changes; one representation.

The modules named here are those of BERT's block, which RoBERTa shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from fedpeft.modifications import Modification
from fedpeft.modifications.hooks import OWN, applied, attention_mask_of
from fedpeft.modifications.packing import Packing
from fedpeft.modifications.prompts import prefixes_of

#: Sites of a block in the order they are computed, up to each place and beyond it.
_ATTENTION = ("attn_in", "q", "k", "v", "kv", "heads")
_MIDDLE = ("attn_out", "attn_norm", "ffn_mid")
_FFN = ("ffn_out", "ffn_sum", "ffn_norm")
Place = Literal["attention", "ffn", "end"]


@dataclass(frozen=True)
class Cut:
    """A place at which a forward pass can begin: ``place`` of block ``layer``."""

    place: Place
    layer: int

    @property
    def representations(self) -> int:
        """How many representations of a token are needed there."""
        return 1 if self.place == "end" else 2


def first_change(modifications: Sequence[Modification], layers: int) -> Cut | None:
    """Return the last place with no modification below it; None = only the embeddings are."""
    if not modifications:
        return Cut("end", layers)
    if any(m.site not in (*_ATTENTION, *_MIDDLE, *_FFN) for m in modifications):
        return None  # embeddings, or the weights themselves
    layer = min(m.layer for m in modifications)
    first = [m for m in modifications if m.layer == layer]
    if _behind(first, _FFN):
        return Cut("ffn", layer)
    if _behind(first, _MIDDLE + _FFN):
        return Cut("attention", layer)
    return Cut("ffn", layer - 1) if layer else None


def _behind(modifications: Iterable[Modification], sites: Sequence[str]) -> bool:
    """Return whether the modifications of a block change and read nothing before ``sites``."""

    def reads(modification: Modification) -> bool:
        if modification.site == sites[0] and modification.reads == "input":
            return False  # that of the output layer, which is not computed again
        return modification.reads in (*OWN, *sites)

    return all(m.site in sites and reads(m) for m in modifications)


def below(model: Any, cut: Cut, **inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the representations [N, T, width] at a cut, of an encoder as it is.

    Args:
        model: BERT or RoBERTa of transformers.
        cut: where.
        inputs: input ids, attention mask, token types.
    """
    attended = inputs.pop("attention_mask")
    hidden = model.embeddings(**inputs)
    mask = attention_mask_of(model, attended)
    blocks = model.encoder.layer
    for block in blocks[: cut.layer]:
        hidden = block(hidden, mask)
    if cut.place == "end":
        return (hidden,)
    attention = blocks[cut.layer].attention
    if cut.place == "attention":
        heads = attention.self(hidden, mask)[0]
        return attention.output.dense(heads), hidden
    hidden = attention(hidden, mask)[0]
    block = blocks[cut.layer]
    return block.output.dense(block.intermediate(hidden)), hidden


def resume(
    model: Any,
    family: str,
    modifications: Sequence[Modification],
    cut: Cut,
    states: Sequence[Tensor],
    attention_mask: Tensor,
    packing: Packing | None = None,
) -> Tensor:
    """Return the last hidden states [N, T, width] of a pass that begins at a cut.

    Args:
        model: the encoder.
        family: of its architecture.
        modifications: none of them below the cut.
        cut: where to begin, not the end.
        states: what ``below`` returned.
        attention_mask: int64 [N, T].
        packing: of the texts, if they are to pass without their padding.
    """
    hooked, arguments = prefixes_of(modifications)
    if packing:
        states, arguments = (
            [packing.pack(each) for each in states],
            {**arguments, "packing": packing},
        )
    first, *rest = model.encoder.layer[cut.layer :]
    mask = attention_mask_of(model, attention_mask)
    with applied(model, family, hooked):
        if cut.place == "attention":
            hidden = first.feed_forward_chunk(_finish(first.attention.output, *states))
        else:
            hidden = _finish(first.output, *states)
        for block in rest:
            hidden = block(hidden, mask, **arguments)
    return packing.unpack(hidden) if packing else hidden


def _finish(module: nn.Module, made: Tensor, residual: Tensor) -> Tensor:
    """Return what an output layer and the LayerNorm behind it make, the layer's product known.

    The layer runs on no tokens at all, and its hooks get the product: those of modifications are
    called as in any other pass, behind this one.
    """
    dense = module.dense
    handle = dense.register_forward_hook(lambda *_: made, prepend=True)
    try:
        return module(made.new_empty(len(made), 0, dense.in_features), residual)
    finally:
        handle.remove()
