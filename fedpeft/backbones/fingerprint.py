"""Identify a backbone by a hash of all that determines a forward pass."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fedpeft.backbones.families import FAMILIES, family_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Configuration that determines a forward pass, besides the weights.
_CONFIGURATION = (
    "model_type",
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)


def fingerprint_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of configuration, weights by name, and tokenizer."""
    total = hashlib.sha256()
    for key in (*_CONFIGURATION, *FAMILIES[family_of(model.config)].configuration):
        total.update(f"{key}={getattr(model.config, key, None)}|".encode())
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().cpu().numpy().data)
    total.update(_tokenizer_definition(tokenizer).encode())
    return total.hexdigest()


def _tokenizer_definition(tokenizer: Any) -> str:
    """Return vocabulary, merges and pre-processing as text, without state of earlier calls."""
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()
