"""Generated texts: transformers' search with hooks, merged weights, and passes without a cache."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models import METHODS, random_vectors
from pairs import covering, fitting
from small_families import WRITING, _randomized, small_language
from text_runs import saved
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from written_texts import encoded_texts, text_model

from fedpeft.backbones.known import shape_of_config
from fedpeft.backbones.language import caches, prepared
from fedpeft.backbones.loading import load_backbone
from fedpeft.batches.encoded import IGNORED
from fedpeft.errors import UserError
from fedpeft.modifications.fusing import fused
from fedpeft.tasks.writing import _beside, _joined
from fedpeft.text import generation
from fedpeft.text.model import Search

CACHED = [name for name in METHODS if name not in ("linear", "prompt", "jr_warp")]
SEARCH = Search(tokens=7)


PAIRS = covering(fitting(WRITING, CACHED), families=["gpt2", "bart"], names=["lora", "prefix"])


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_a_cached_search_equals_passes_without_a_cache(family: str, name: str) -> None:
    model = text_model(small_language(family), name)
    prompts = generation._prompts(encoded_texts(model.backbone))
    groups = 2 if model.method.grouped else 1
    with torch.inference_mode():
        changes = model.realise(random_vectors(model, groups)).modifications
        batch = model.collate([prompts] * groups, [np.arange(5)] * groups)
        cached = generation._with_cache(model, changes, batch, SEARCH)
        plain = generation._without_cache(model, changes, batch, SEARCH)
    assert torch.equal(cached, plain)
    # (m)BART's random weights may repeat one token, whatever the source.
    assert family in ("bart", "mbart") or len({tuple(row) for row in cached.tolist()}) > 1


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bart", "t5"])
@pytest.mark.parametrize("name", ["prompt", "jr_warp", "lora"])
def test_a_generated_text_is_what_the_model_predicts(family: str, name: str) -> None:
    """Each token of the greedy search is the most likely one after those before it."""
    model = text_model(small_language(family), name)
    backbone, vectors = model.backbone, random_vectors(model, 1)
    prompts = generation._prompts(encoded_texts(backbone))
    search = generation._with_cache if name == "lora" else generation._without_cache
    with torch.inference_mode():
        realised = model.realise(vectors)
        batch = model.collate([prompts], [np.arange(5)])
        written = search(model, realised.modifications, batch, SEARCH)
        for row, target in enumerate(written.tolist()):
            ends = target.index(2) + 1 if 2 in target else len(target)
            ids = prompts.tokens[prompts.offsets[row] : prompts.offsets[row + 1]].tolist()
            join = _joined if backbone.shape.sites.writes == "decoder" else _beside
            text = join([ids], [target[:ends]], None)
            logits = model.outputs(realised, model.collate([text], [np.arange(1)]))
            assert logits.argmax(1).tolist() == target[:ends]
            assert (text.labels != IGNORED).sum() == ends


@pytest.mark.parametrize("family", ["gpt2", "llama", "bart"])
def test_beams_are_those_of_transformers_with_merged_weights(family: str) -> None:
    model = text_model(small_language(family), "lora")
    vectors = random_vectors(model, 1, scale=0.6)
    prompts = generation._prompts(encoded_texts(model.backbone))
    with torch.inference_mode():
        changes = model.realise(vectors).modifications
        batch = model.collate([prompts], [np.arange(5)])
        written = generation._with_cache(model, changes, batch, Search(7, beams=3))
        greedy = generation._with_cache(model, changes, batch, Search(7))
    with fused(model.backbone.model, model.backbone.shape, changes), torch.inference_mode():
        merged = generation._with_cache(model, [], batch, Search(7, beams=3))
        plain = generation._with_cache(model, [], batch, Search(7))
    assert torch.equal(written, merged)
    assert torch.equal(greedy, plain)
    same = written.shape == greedy.shape and torch.equal(written, greedy)
    assert family == "bart" or not same  # its random weights repeat one token


def test_beams_need_a_method_that_adds_no_tokens() -> None:
    model = text_model(small_language("gpt2"), "prompt")
    with pytest.raises(UserError, match=r"task.beams = 2: this method adds tokens"):
        model.search = Search(7, beams=2)


def test_texts_come_in_the_order_of_their_sources() -> None:
    model = text_model(small_language("gpt2"), "lora")
    model.search = SEARCH
    vector, texts = random_vectors(model, 1)[0].numpy(), encoded_texts(model.backbone)
    done: list[int] = []
    together = generation.generate(model, vector, texts, done.append)
    assert done == [5]
    single = [generation.generate(model, vector, texts.select(np.array([k])))[0] for k in range(5)]
    assert together == single
    assert len({*together}) > 1


def test_t5_uses_transformers_cache_where_it_has_a_layer_for_each_block() -> None:
    cached = {name: small_language(name).language.generation_config.use_cache for name in WRITING}
    assert cached == {name: name not in ("t5", "t5-gated") for name in WRITING}
    config = small_language("t5").language.config
    even = type(config)(**{**config.to_dict(), "num_decoder_layers": config.num_layers})
    assert caches(even)


def test_a_cached_search_of_an_even_t5_equals_passes_without_a_cache() -> None:
    """The small T5 of the other tests has stacks of two depths, which transformers cannot cache."""
    small = small_language("t5")
    config = AutoConfig.for_model(**{**small.language.config.to_dict(), "num_layers": 3})
    language = _randomized(AutoModelForSeq2SeqLM.from_config(config))
    shape = shape_of_config(config)
    base = prepared("even", language, small.tokenizer, shape)
    backbone = replace(small, model=base, language=language, shape=shape)
    assert language.generation_config.use_cache
    prompts = generation._prompts(encoded_texts(backbone))
    for name in ("lora", "prefix", "slash", "mam"):
        model = text_model(backbone, name)
        with torch.inference_mode():
            changes = model.realise(random_vectors(model, 2)).modifications
            batch = model.collate([prompts] * 2, [np.arange(5)] * 2)
            cached = generation._with_cache(model, changes, batch, SEARCH)
            plain = generation._without_cache(model, changes, batch, SEARCH)
        assert torch.equal(cached, plain)


def test_spaces_before_punctuation_are_written_as_the_target_has_them(tmp_path: Path) -> None:
    """Many tokenizers on the hub were saved with clean_up_tokenization_spaces = true."""
    tokenizer = copy.deepcopy(small_language("gpt2").tokenizer)
    tokenizer.clean_up_tokenization_spaces = True
    folder = saved("gpt2", tmp_path)
    tokenizer.save_pretrained(folder)
    target = "a good film ? not , great ."
    ids = tokenizer(target, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "a good film? not, great."
    assert load_backbone(str(folder), writes=True).tokenizer.decode(ids) == target
