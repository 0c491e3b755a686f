"""Inputs of a transformers model for a batch, with what each family needs besides the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.batches.batch import Batch


def model_inputs(model: Any, shape: BackboneShape, batch: Batch) -> dict[str, Any]:
    """Return the keyword arguments of the model's forward pass.

    Args:
        model: the backbone.
        shape: its shape.
        batch: texts [N, T]. The mask is longer, [N, k + T], if k embeddings come before the texts.
    """
    ids, mask, family = batch.input_ids, batch.attention_mask, shape.sites
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    prompted = mask.shape[1] > ids.shape[1]
    if shape.types > 1:
        inputs["token_type_ids"] = batch.token_type_ids
    if family.positions:
        inputs["position_ids"] = torch.arange(mask.shape[1], device=mask.device)[None]
    if family.embeds and prompted:
        # The model would give its output the shape of the token ids.
        inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    if family.reads_last:
        inputs["use_cache"] = False
    if family.starts:
        inputs["decoder_input_ids"] = _shifted(ids, mask, model.config, family.starts)
    if family.early_mask and prompted:  # one row for all queries, whose number it does not know
        inputs["attention_mask"] = padding_mask(model, mask, 1)
    return inputs


def padding_mask(model: Any, mask: Tensor, queries: int | None = None) -> Tensor | None:
    """Return a mask [N, T] in the form that the attention takes, [N, 1, queries, T]."""
    size = (len(mask), mask.shape[1] if queries is None else queries, 0)
    like = torch.empty(size, dtype=model.dtype, device=mask.device)
    return create_bidirectional_mask(model.config, like, mask)


def _shifted(ids: Tensor, mask: Tensor, config: Any, starts: str) -> Tensor:
    """Return the decoder's tokens: each position sees those before it, see ``Family.starts``."""
    if starts == "last":
        last = mask[:, -ids.shape[1] :].sum(1, keepdim=True).long() - 1
        first = ids.gather(1, last)
    else:
        first = torch.full_like(ids[:, :1], config.decoder_start_token_id)
    return torch.cat([first, ids[:, :-1]], dim=1)
