"""Texts that a task vector writes: transformers' search, or passes without a cache.

A method that changes hidden states of each token works inside transformers' ``generate`` with its
cache of keys and values. A method that adds tokens to a text needs the whole text in every pass:
greedy search, one pass per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from fedpeft.backbones.moving import to_device
from fedpeft.batches.batch import EVALUATION_BATCH, Batch, batches, collate
from fedpeft.batches.encoded import Encoded, offsets_of
from fedpeft.modifications import Modification
from fedpeft.text.model import Search, TextModel


def generate(
    model: TextModel,
    vector: np.ndarray,
    examples: Encoded,
    report: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Return the texts that one task vector [P] writes for n sources, in their order."""
    vectors = to_device(vector, model.backbone.device, model.dtype)[None]
    prompts, texts, search = _prompts(examples), [""] * len(examples), model.search
    write = _without_cache if model.adds_tokens else _with_cache
    with torch.inference_mode():
        changes = model.realise(vectors).modifications
        for done, rows in enumerate(batches(prompts.lengths, EVALUATION_BATCH, None)):
            batch = collate(
                [prompts], [rows], model.backbone.pad_id, model.backbone.device, model.dtype
            )
            written = write(model, changes, batch, search)
            for row, ids in zip(rows, written.tolist(), strict=True):
                text = model.backbone.tokenizer.decode(ids, skip_special_tokens=True)
                texts[row] = str(text).strip()
            report(min(len(texts), (done + 1) * EVALUATION_BATCH))
    return texts


def _prompts(examples: Encoded) -> Encoded:
    """Return the sources alone, up to the position that predicts the target's first token."""
    lengths = examples.read.astype(np.int64) + 1
    place = np.arange(len(examples.tokens)) - np.repeat(examples.offsets[:-1], examples.lengths)
    kept = place < np.repeat(lengths, examples.lengths)
    nothing = np.zeros(len(examples), np.int64)
    return Encoded(
        examples.tokens[kept],
        examples.segments[kept],
        offsets_of(lengths),
        examples.read,
        nothing,
    )


def _with_cache(
    model: TextModel, changes: Sequence[Modification], batch: Batch, search: Search
) -> Tensor:
    """Return new tokens [N, S] of transformers' ``generate``."""
    ids, mask = batch.input_ids, batch.attention_mask
    decoder = model.method.shape.sites.writes == "decoder"
    if decoder:  # the next token comes after the last one: padding is on the left
        shift = ids.shape[1] - mask.sum(1, keepdim=True)
        order = (torch.arange(ids.shape[1], device=ids.device)[None] - shift) % ids.shape[1]
        ids, mask = ids.gather(1, order), mask.gather(1, order)
    plain: GenerationConfig = model.language.generation_config
    settings = GenerationConfig.from_dict(
        {
            **plain.to_dict(),
            "max_new_tokens": search.tokens,
            "num_beams": search.beams,
            "do_sample": False,
        }
    )
    with model.in_place(changes) as language:
        written: Tensor = language.generate(
            input_ids=ids, attention_mask=mask, generation_config=settings
        )
    return written[:, ids.shape[1] if decoder else 1 :]


def _without_cache(
    model: TextModel, changes: Sequence[Modification], batch: Batch, search: Search
) -> Tensor:
    """Return new tokens [N, S] of a greedy search that passes the whole text for each token."""
    config = model.language.generation_config
    count, ends = len(batch.read), config.eos_token_id
    finished = torch.zeros(count, dtype=torch.bool, device=batch.read.device)
    written = batch.input_ids.new_zeros(count, 0)
    decoded = None
    if model.method.shape.sites.writes == "encoder-decoder":
        decoded = batch.input_ids.new_full((count, 1), config.decoder_start_token_id)
    while written.shape[1] < search.tokens and not finished.all():
        best = model.next_logits(changes, batch, decoded).argmax(1)
        best = best.masked_fill(finished, config.pad_token_id)
        written = torch.cat([written, best[:, None]], dim=1)
        finished = finished | (best == ends)
        if decoded is None:
            batch = _longer(batch, best)
        else:
            decoded = torch.cat([decoded, best[:, None]], dim=1)
    return written


def _longer(batch: Batch, tokens: Tensor) -> Batch:
    """Return a batch with one more token [N] after each text."""
    rows, at = torch.arange(len(tokens), device=tokens.device), batch.read + 1
    ids, mask, types = (
        torch.nn.functional.pad(tensor, (0, 1))
        for tensor in (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    )
    ids[rows, at], mask[rows, at] = tokens, 1
    return replace(batch, input_ids=ids, attention_mask=mask, token_type_ids=types, read=at)
