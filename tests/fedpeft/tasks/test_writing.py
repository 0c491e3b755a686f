"""Tokens of sources and targets, for a decoder and for an encoder-decoder."""

from __future__ import annotations

import numpy as np
import pytest
from small_families import small_language
from written_texts import SOURCES, TARGETS, section

from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import IGNORED
from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.writing import encode_written

EXAMPLES = Examples(SOURCES, None, np.zeros(5, np.int64), targets=TARGETS)
PROMPT = "film: {source} ="


def test_a_decoder_reads_the_prompt_and_the_target_without_its_end() -> None:
    backbone = small_language("gpt2")
    tokenizer = backbone.tokenizer
    texts = encode_written(EXAMPLES, backbone, section(prompt=PROMPT))
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        prompt = tokenizer(f"film: {source} =")["input_ids"][:-1]  # without the end token
        written = [*tokenizer(target, add_special_tokens=False)["input_ids"], 2]
        place = slice(texts.offsets[row], texts.offsets[row + 1])
        assert texts.tokens[place].tolist() == [*prompt, *written[:-1]]
        assert texts.labels[place].tolist() == [IGNORED] * (len(prompt) - 1) + written
        assert texts.read[row] == len(prompt) - 1
    assert texts.per_token and texts.targets is not None
    assert texts.targets.tolist() == TARGETS


def test_an_encoder_decoder_has_labels_of_their_own_length() -> None:
    backbone = small_language("bart")
    tokenizer = backbone.tokenizer
    texts = encode_written(EXAMPLES, backbone, section(prompt=PROMPT))
    chosen = texts.select(np.array([3, 1, 3]))
    assert chosen.label_offsets is not None and chosen.targets is not None
    for place, row in enumerate([3, 1, 3]):
        source = tokenizer(f"film: {SOURCES[row]} =")["input_ids"]
        span = slice(chosen.offsets[place], chosen.offsets[place + 1])
        assert chosen.tokens[span].tolist() == source
        span = slice(chosen.label_offsets[place], chosen.label_offsets[place + 1])
        assert chosen.labels[span].tolist() == tokenizer(TARGETS[row])["input_ids"]
        assert chosen.targets[place] == TARGETS[row]
    batch = collate([texts], [np.array([1, 2])], 1, "cpu", backbone.model.dtype)
    labels = [tokenizer(TARGETS[row])["input_ids"] for row in (1, 2)]
    expected = labels[1] + [IGNORED] * (len(labels[0]) - len(labels[1]))
    assert batch.labels.tolist() == [labels[0], expected]
    assert batch.input_ids.shape[1] == texts.lengths[[1, 2]].max() != batch.labels.shape[1]


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_long_source_is_cut_inside_the_prompt_and_a_target_keeps_its_end(family: str) -> None:
    backbone = small_language(family)
    tokenizer = backbone.tokenizer
    examples = Examples(["good fun " * 30], None, np.zeros(1), targets=["bad film " * 30])
    task = section(prompt=PROMPT, max_length=16, max_target=9)
    texts = encode_written(examples, backbone, task)
    read = texts.tokens[: texts.read[0] + 1]
    assert len(read) == 16
    text = tokenizer.decode(read, skip_special_tokens=True)
    assert text.startswith("film : good f") and text.endswith(" =")
    labels = texts.labels[texts.labels != IGNORED]
    assert len(labels) == 9 and labels[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(labels, skip_special_tokens=True).startswith("bad film")
    whole = encode_written(examples, backbone, section(prompt=PROMPT, max_target=500))
    lost = (whole.labels != IGNORED).sum() - 9
    assert texts.cut is not None and whole.cut is not None
    assert texts.cut.targets is not None and texts.cut.targets.tolist() == [lost]
    assert texts.cut.counts() == (1, 0, 1) and whole.cut.counts()[2] == 0


def test_a_prompt_without_room_for_a_source_is_refused() -> None:
    task = section(prompt="a very long prompt indeed for a film: {source} =", max_length=8)
    with pytest.raises(UserError, match=r"task.prompt: has \d+ tokens without the source; .* 8$"):
        encode_written(EXAMPLES, small_language("gpt2"), task)


def test_sources_alone_are_read_for_generation() -> None:
    backbone = small_language("gpt2")
    alone = encode_written(Examples(SOURCES, None, np.zeros(5)), backbone, section(prompt=PROMPT))
    both = encode_written(EXAMPLES, backbone, section(prompt=PROMPT))
    assert alone.read.tolist() == both.read.tolist() == (alone.lengths - 1).tolist()
    assert alone.targets is None
