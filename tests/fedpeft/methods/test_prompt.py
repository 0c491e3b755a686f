"""Prompt tuning: embeddings in front of the text, and WARP's template around the mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal import Seen, assert_literal, at_text, engine_states, literal_encoder
from models import batch_of, build_model, random_vectors, with_types, without_padding
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel


def test_prompt_is_prepended_to_the_embeddings(encoder: Backbone) -> None:
    model = build_model(encoder, "prompt", length=3)
    assert_literal(model, lambda params: {"prompt": params["prompt"]}, scale=1.0)


def template(batch: Batch, length: int, mask_id: int) -> tuple[Batch, list[range]]:
    """Write ``length`` mask tokens around the read position of each text, token by token.

    Also returns which of the tokens stand there now, the one that is read included.
    """
    left = length // 2
    names = ("input_ids", "token_type_ids", "attention_mask")
    columns: dict[str, list[list[int]]] = {name: [] for name in names}
    places = []
    for row, read in enumerate(batch.read.tolist()):
        for name, rows in columns.items():
            old = getattr(batch, name)[row].tolist()
            new = mask_id if name == "input_ids" else old[read]
            right = length - left
            rows.append(old[:read] + [new] * left + [old[read]] + [new] * right + old[read + 1 :])
        places.append(range(read, read + length + 1))
    longer = {name: torch.tensor(rows) for name, rows in columns.items()}
    return replace(batch, **longer, read=batch.read + left), places


def mask_batches(model: TaskModel) -> list[Batch]:
    """Return a padded and an unpadded batch; the read positions include the first and the last."""
    batch = batch_of(model.backbone, 2, 3, "mask")
    if model.method.shape.types > 1:
        batch = with_types(batch)
    ends = torch.tensor([0, 1, 2, 3, 4, 0])
    ends[3:5] = batch.attention_mask.sum(1)[3:5] - 1
    return [batch, without_padding(batch), replace(batch, read=ends)]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_template_changes_the_mask_tokens_around_the_mask(encoder: Backbone, length: int) -> None:
    model = build_model(encoder, "prompt", length=length, placement="template")
    vectors = random_vectors(model, 2, scale=1.0)
    prompts = model.layout.unpack(vectors)["prompt"]
    for batch in mask_batches(model):
        longer, places = template(batch, length, encoder.tokenizer.mask_token_id)

        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != "words":
                return hidden
            hidden = hidden.clone()
            for row, place in enumerate(places):  # noqa: B023
                added = [at for at in place if at != longer.read[row]]  # noqa: B023
                hidden[row, added] += prompts[row // 3]
            return hidden

        texts = longer.input_ids, longer.attention_mask, longer.token_type_ids
        expected = at_text(literal_encoder(encoder.model, *texts, change), longer.attention_mask)
        actual = engine_states(model, vectors, batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_template_starts_as_the_text_with_more_masks(small: Backbone, length: int) -> None:
    model = build_model(small, "prompt", length=length, placement="template")
    plain = build_model(small, "linear")
    vectors = torch.from_numpy(model.parameters.initial(0))[None]
    batch = batch_of(small, 1, 5, "mask")
    longer, _ = template(batch, length, small.tokenizer.mask_token_id)
    assert (longer.input_ids == small.tokenizer.mask_token_id).sum(1).tolist() == [length + 1] * 5
    head = vectors[:, -plain.layout.size :]
    expected = plain.outputs(plain.realise(head), longer)
    torch.testing.assert_close(model.outputs(model.realise(vectors), batch), expected)


def test_template_reads_the_mask_in_its_middle(small: Backbone) -> None:
    model = build_model(small, "prompt", length=3, placement="template")
    batch, realised = batch_of(small, 1, 4, "mask"), model.realise(random_vectors(model, 1))
    hidden, _ = model.hidden_states(realised.modifications, batch)
    read = hidden[torch.arange(4), batch.read + 1]
    expected = read @ realised.head_weight[0].T + realised.head_bias[0]
    torch.testing.assert_close(model.outputs(realised, batch), expected, rtol=0, atol=1e-12)


def test_prompt_moves_the_position_that_the_head_reads(small: Backbone) -> None:
    model = build_model(small, "prompt", length=3)
    realised = model.realise(random_vectors(model, 1))
    for representation in ("mask", "cls", "mean"):
        batch = batch_of(small, 1, 4, representation)
        hidden, _ = model.hidden_states(realised.modifications, batch)
        text, mask = hidden[:, 3:], batch.attention_mask[:, :, None]
        read = text[torch.arange(4), batch.read.clamp(min=0)]
        if representation == "mean":
            read = (text * mask).sum(1) / mask.sum(1)
        expected = read @ realised.head_weight[0].T + realised.head_bias[0]
        actual = model.outputs(realised, batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
