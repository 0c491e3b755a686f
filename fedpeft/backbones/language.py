"""Backbones with their output embeddings, which write text: decoders and encoder-decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from fedpeft.backbones.attention import SDPA
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError


def prepared(
    name: str,
    language: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    shape: BackboneShape,
) -> PreTrainedModel:
    """Prepare a model with output embeddings; return its part without them.

    The model is frozen and in evaluation mode. Its generation settings are replaced: those of a
    checkpoint may sample, or force tokens. The tokenizer decodes what was written: many saved ones
    drop spaces before punctuation, so no text with such a space would equal its target.

    Args:
        name: of the backbone, for messages.
        language: the model; it shares its modules with the part that is returned.
        tokenizer: the model's tokenizer.
        shape: the model's sizes.

    Raises:
        UserError: the tokenizer has no end token, or an encoder-decoder no start token.
    """
    start = getattr(language.config, "decoder_start_token_id", None)
    if tokenizer.eos_token_id is None:
        raise UserError(f"backbone '{name}': its tokenizer has no end token, which text needs")
    if shape.sites.writes == "encoder-decoder" and start is None:
        raise UserError(
            f"backbone '{name}': its configuration has no decoder_start_token_id; set it in the "
            f"folder's config.json"
        )
    tokenizer.clean_up_tokenization_spaces = False
    padding = tokenizer.pad_token_id
    language.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id if padding is None else padding,
        decoder_start_token_id=start,
        use_cache=caches(language.config),
    )
    language.eval().requires_grad_(False)
    if shape.sites.attends:
        language.set_attn_implementation(SDPA)
    return base_of(language)


def caches(config: Any) -> bool:
    """Return whether transformers can cache keys and values while it generates.

    transformers 5.24 makes the cache of T5's decoder with the encoder's number of layers.
    """
    layers = getattr(config, "num_decoder_layers", None)
    return layers is None or bool(layers == config.num_hidden_layers)


def base_of(language: Any) -> PreTrainedModel:
    """Return the model without output embeddings, with the same modules.

    T5's class with output embeddings contains no model of the other class.
    """
    base: PreTrainedModel = language.base_model
    if base is not language:
        return base
    with torch.device("meta"):
        base = AutoModel.from_config(language.config)
    for child, _ in base.named_children():
        setattr(base, child, getattr(language, child))
    return base.eval()


def token_logits(language: Any, states: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Return the logits of the next token, [..., V], from last hidden states [..., width].

    They equal those of the models' own forward passes: T5 scales the states where input and output
    embeddings are tied, BART adds a bias.

    Args:
        language: the backbone with its output embeddings.
        states: last hidden states.
        tokens: ids of the C tokens to return logits of, [..., C]; None = all V of the vocabulary.
    """
    if getattr(language.config, "scale_decoder_outputs", False):
        states = states * language.config.d_model**-0.5
    output, bias = language.get_output_embeddings(), getattr(language, "final_logits_bias", None)
    if tokens is None:
        logits: Tensor = output(states)
        return logits if bias is None else logits + bias[0]
    own = None if output.bias is None else output.bias[tokens]
    logits = functional.linear(states, output.weight[tokens], own)
    return logits if bias is None else logits + bias[0, tokens]
