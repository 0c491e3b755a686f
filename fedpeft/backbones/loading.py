"""Load frozen backbones, once per process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedpeft.backbones.checkpoints import backbone_digest, backbone_shape, from_pretrained
from fedpeft.backbones.families import FAMILIES
from fedpeft.backbones.fingerprint import fingerprint_of
from fedpeft.backbones.hardware import choose_device
from fedpeft.backbones.known import shape_of_config
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CACHED = 2  # backbones kept in memory


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen transformer in evaluation mode with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: BackboneShape
    fingerprint: str  # SHA-256 of configuration, weights and tokenizer, in hexadecimal
    device: torch.device
    language: PreTrainedModel | None = None  # ``model`` with output embeddings, to write text
    weights: str = "float32"  # form of the frozen weights, see ``compact``

    @property
    def dtype(self) -> torch.dtype:
        """Number format of hidden states outside the blocks and of task vectors."""
        import torch

        whole = self.weights == "float32"
        return next(self.model.parameters()).dtype if whole else torch.float32

    @property
    def pad_id(self) -> int:
        """Token id that fills up texts; no text sees it, so any serves without a padding token."""
        return self.tokenizer.pad_token_id or 0


def load_backbone(
    name: str,
    device: str = "auto",
    dtype: str = "float32",
    writes: bool = False,
    weights: str = "float32",
) -> Backbone:
    """Load a backbone, frozen and without dropout; the last CACHED ones are kept in memory.

    Args:
        name: ``minilm``, ``tiny``, a hub name, or a folder made by ``save_pretrained``.
        device: ``auto``, ``cuda``, ``mps`` or ``cpu``.
        dtype: ``float32`` or ``float64``.
        writes: whether to load the output embeddings, too, which write text.
        weights: form of the frozen weights: ``float32`` (that of ``dtype``), ``bfloat16``,
            ``int8`` or ``int4``, see ``compact``. The fingerprint is that of the float32 weights.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map,
            ``writes`` with an encoder, or a library is missing.
    """
    return cached_backbone(name, device, dtype, writes, weights, backbone_digest(name))


@lru_cache(maxsize=CACHED)
def cached_backbone(
    name: str, device: str, dtype: str, writes: bool, weights: str, content: str
) -> Backbone:
    """See ``load_backbone``, whose defaults must not make several keys of one backbone.

    ``content`` is the digest of its files, see ``backbone_digest``.
    """
    import torch

    from fedpeft.backbones.attention import SDPA

    where = choose_device(device, dtype)
    if writes:
        return _load_language(name, where, getattr(torch, dtype), weights)
    if name == "tiny":
        from fedpeft.backbones.tiny import tiny_backbone

        model, tokenizer = tiny_backbone()
    else:
        model, tokenizer = from_pretrained(name)
    fingerprint = fingerprint_of(model, tokenizer)
    _place(model, where, getattr(torch, dtype), weights)
    model.eval().requires_grad_(False)
    shape = shape_of_config(model.config)
    if shape.sites.attends:
        model.set_attn_implementation(SDPA)
    return Backbone(name, model, tokenizer, shape, fingerprint, where, weights=weights)


def _place(model: Any, device: torch.device, dtype: torch.dtype, weights: str) -> None:
    """Move a model to its device, with its weights in their form."""
    if weights == "float32":
        model.to(device, dtype)
        return
    from fedpeft.backbones.compact import compact

    compact(model, weights, device)
    model.to(device)


def in_float32(backbone: Backbone) -> Backbone:
    """Return a backbone with the values of its compact weights in float32, to merge changes into.

    The backbone itself if its weights are not compact; otherwise a copy.
    """
    if backbone.weights == "float32":
        return backbone
    from fedpeft.backbones.compact import expanded
    from fedpeft.backbones.language import base_of

    if backbone.language is None:
        return replace(backbone, model=expanded(backbone.model), weights="float32")
    language = expanded(backbone.language)
    return replace(backbone, model=base_of(language), language=language, weights="float32")


def _load_language(name: str, device: torch.device, dtype: torch.dtype, weights: str) -> Backbone:
    """Return a backbone that writes text; its fingerprint covers the output embeddings, too."""
    from fedpeft.backbones.language import prepared

    require_writing(name, backbone_shape(name))
    language, tokenizer = from_pretrained(name, writes=True)
    fingerprint, shape = fingerprint_of(language, tokenizer), shape_of_config(language.config)
    _place(language, device, dtype, weights)
    model = prepared(name, language, tokenizer, shape)
    return Backbone(name, model, tokenizer, shape, fingerprint, device, language, weights)


def require_writing(name: str, shape: BackboneShape) -> None:
    """Raise UserError if a backbone is an encoder, which writes no text."""
    if not shape.sites.writes:
        decoders = [family for family, sites in FAMILIES.items() if sites.writes]
        raise UserError(
            f"backbone = '{name}': a {shape.family} model is an encoder and writes no text; "
            f"task.kind = 'text' and head.kind = 'likelihood' need one of {', '.join(decoders)}"
        )
