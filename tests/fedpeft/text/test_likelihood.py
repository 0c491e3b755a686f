"""Logits of classes by likelihood against transformers, and gradients against single examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models import random_vectors
from pairs import covering, fitting
from small_families import WRITING, small_language, tolerance
from torch import Tensor
from torch.nn import functional
from worded import LABELS, PAIRS, TEXTS, WORDS, likelihood_model, prompted, prompted_batch

from fedpeft.backbones.loading import Backbone
from fedpeft.modifications.fusing import fused
from fedpeft.tasks.metrics import scores
from fedpeft.training import evaluate

MERGED = covering(
    fitting(WRITING, ["lora", "bitfit", "vera", "uni_lora"]),
    families=["gpt2", "bart"],
    names=["lora"],
)
EVERY = [0, 1, 2, 3, 4]


def literal_logits(backbone: Backbone, row: int) -> Tensor:
    """Return the logits [C] of one example by the forward pass of transformers' own class.

    The tiny tokenizer has a token for each word and encloses texts in <s> and </s>.
    """
    language: Any = backbone.language
    tokenizer: Any = backbone.tokenizer
    words = [tokenizer.convert_tokens_to_ids(word.split()[0]) for word in WORDS]
    text = f"film: {TEXTS[row]}, that is {PAIRS[row]}. it was"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    if backbone.shape.decoder_layers:  # its targets are "<s> word </s>", shifted by one
        start = language.config.decoder_start_token_id
        if backbone.shape.family == "mbart":  # starts with the last token of the target
            start = tokenizer.eos_token_id
        decoder_ids = torch.tensor([[start, tokenizer.bos_token_id]])
        output = language(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False)
    else:
        output = language(input_ids=ids[:, :-1], use_cache=False)
    logits: Tensor = output.logits[0, -1, words]
    return logits


@pytest.mark.parametrize(("family", "name"), MERGED)
def test_logits_are_those_of_transformers_with_merged_weights(family: str, name: str) -> None:
    model = likelihood_model(small_language(family), name)
    vectors = random_vectors(model, 1)
    batch = prompted_batch(model.backbone, EVERY)
    realised = model.realise(vectors)
    logits = model.outputs(realised, batch)
    with fused(model.backbone.model, model.backbone.shape, realised.modifications):
        expected = torch.stack([literal_logits(model.backbone, row) for row in EVERY])
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance(family, expected))
    unchanged = torch.stack([literal_logits(model.backbone, row) for row in EVERY])
    assert (logits - unchanged).abs().max() > 1e-3
    losses = model.losses(logits, batch)
    literal = functional.cross_entropy(expected, torch.from_numpy(LABELS), reduction="none")
    torch.testing.assert_close(losses, literal, rtol=0, atol=tolerance(family, expected))


def test_full_fine_tuning_leaves_the_output_embeddings_frozen() -> None:
    model = likelihood_model(small_language("gpt2"), "full")
    vectors = random_vectors(model, 1, 0.05)
    batch = prompted_batch(model.backbone, EVERY)
    gradient, losses = model.gradients(vectors, batch)
    step = 1e-6 * gradient / gradient.norm()
    further = model.mean_losses(model.realise(vectors + step), batch)
    slope = float((further - losses).detach() / 1e-6)
    assert slope == pytest.approx(float(gradient.norm()), rel=1e-4)


def test_batches_are_padded_and_start_at_the_first_block() -> None:
    """Families that write text neither pack nor keep states, so likelihood need not refuse it."""
    for family in WRITING:
        model = likelihood_model(small_language(family), "lora")
        assert (model.packs, model.first_block, model.trains_head_only) == (False, 0, False)
        texts = prompted(model.backbone)
        assert model.kept.attach([texts]) == [texts]


def test_a_task_vector_has_no_head_and_metrics_are_those_of_classes() -> None:
    model = likelihood_model(small_language("gpt2"), "slash")
    assert model.layout.entries == (("z", (12,)),)
    assert model.layout.head_size == 0
    realised = model.realise(random_vectors(model, 2))
    assert len(realised.modifications) == 3 and not realised.head_weight.numel()
    vector = random_vectors(model, 1)[0].numpy()
    seen = evaluate(model, vector, prompted(model.backbone))
    realised = model.realise(torch.from_numpy(vector)[None])
    single = [model.outputs(realised, prompted_batch(model.backbone, [row])) for row in EVERY]
    np.testing.assert_allclose(seen.outputs, torch.cat(single).numpy(), rtol=0, atol=1e-9)
    right = (seen.outputs.argmax(1) == LABELS).mean()
    assert scores(seen.statistics, "classes")["accuracy"] == pytest.approx(right)
