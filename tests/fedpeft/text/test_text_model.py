"""Losses and gradients of a task of text, against transformers and against single examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import random_vectors
from pairs import covering, fitting
from small_families import WRITING, small_language, tolerance
from torch import Tensor
from torch.nn import functional
from written_texts import TARGETS, encoded_texts, text_batch, text_model

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.encoded import IGNORED
from fedpeft.modifications.fusing import fused

MERGED = covering(
    fitting(WRITING, ["lora", "bitfit", "vera", "uni_lora"]),
    families=["gpt2", "bart"],
    names=["lora"],
)


def transformers_loss(backbone: Backbone, row: int) -> Tensor:
    """Return the loss of one example by transformers' logits, and assert that it is its own loss.

    transformers computes the loss of a decoder in float32.
    """
    language: Any = backbone.language
    texts = encoded_texts(backbone)
    ids = torch.from_numpy(texts.tokens[texts.offsets[row] : texts.offsets[row + 1]])[None].long()
    if backbone.shape.decoder_layers:
        starts = texts.label_offsets
        assert starts is not None
        labels = torch.from_numpy(texts.labels[starts[row] : starts[row + 1]])[None]
        output = language(input_ids=ids, labels=labels, use_cache=False)
        loss = functional.cross_entropy(output.logits[0], labels[0])
    else:  # transformers shifts the labels itself, so the text contains its end token
        end = backbone.tokenizer.eos_token_id
        ids = torch.cat([ids, torch.tensor([[end]])], dim=1)
        labels = ids.clone()
        labels[:, : texts.read[row] + 1] = IGNORED
        output = language(input_ids=ids, labels=labels, use_cache=False)
        loss = functional.cross_entropy(output.logits[0, :-1], labels[0, 1:])
    torch.testing.assert_close(output.loss.double(), loss, rtol=1e-5, atol=1e-5)
    return loss


@pytest.mark.parametrize(("family", "name"), MERGED)
def test_losses_are_those_of_transformers_with_merged_weights(family: str, name: str) -> None:
    model = text_model(small_language(family), name)
    vectors = random_vectors(model, 1)
    changes = model.realise(vectors).modifications
    batch = text_batch(model.backbone, [0, 1, 2, 3, 4])
    losses = model.losses(model.outputs(model.realise(vectors), batch), batch)
    with fused(model.backbone.model, model.backbone.shape, changes):
        expected = torch.stack([transformers_loss(model.backbone, row) for row in range(5)])
    torch.testing.assert_close(losses, expected, rtol=0, atol=tolerance(family, expected))
    unchanged = torch.stack([transformers_loss(model.backbone, row) for row in range(5)])
    assert (losses - unchanged).abs().max() > 1e-3


def test_a_task_vector_has_no_head() -> None:
    backbone = small_language("gpt2")
    model = text_model(backbone, "slash")
    assert model.layout.entries == (("z", (12,)),)
    assert model.layout.head_size == 0
    realised = model.realise(random_vectors(model, 2))
    assert len(realised.modifications) == 3 and not realised.head_weight.numel()


def test_no_loss_of_the_source() -> None:
    backbone = small_language("gpt2")
    texts = encoded_texts(backbone)
    predicted = texts.labels[texts.labels != IGNORED].tolist()
    end = backbone.tokenizer.eos_token_id
    plain = backbone.tokenizer(TARGETS, add_special_tokens=False)["input_ids"]
    assert predicted == [token for ids in plain for token in [*ids, end]]
