"""Tokenize a chunk of texts: plainly, around a mask, or word by word."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.batches.encoded import IGNORED, offsets_of
from fedpeft.tasks.base import Examples

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

#: Tokens ``[total]``, segments ``[total]``, lengths ``[n]``, read ``[n]``, labels, as in Encoded;
#: cut texts ``[n]`` and words without a token ``[n]``, as in Cut, the latter empty without tags.
Tokens = tuple[np.ndarray, ...]
_ALL_READ = np.zeros((0, 2), np.int64)  # shared by the texts of which each word has a token


def plain(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Use the tokenizer's encoding of texts or pairs."""
    encoding = tokenizer(
        examples.text[chunk],
        None if examples.text_pair is None else examples.text_pair[chunk],
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    tokens, segments, lengths = _flat(encoding)
    read, labels = np.zeros(len(lengths), np.int32), examples.labels[chunk]
    return tokens, segments, lengths, read, labels, _shortened(encoding), np.empty(0, object)


def around_mask(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Encode ``text <mask> text_pair``.

    The whole string is tokenized and truncated afterwards, because tokens depend on their
    neighbors (a RoBERTa mask absorbs the space on its left).
    """
    mask = tokenizer.mask_token
    first = examples.text[chunk]
    if examples.text_pair is None:
        strings = [f"{one} {mask}" for one in first]
    else:
        pairs = zip(first, examples.text_pair[chunk], strict=True)
        strings = [f"{one} {mask} {two}" for one, two in pairs]
    options = {"truncation": False, "verbose": False, "return_token_type_ids": True}
    encoding = tokenizer(strings, return_attention_mask=False, **options)
    # Located by its character: the text may also contain a mask token.
    masks = np.array([encoding.char_to_token(i, len(one) + 1) for i, one in enumerate(first)])
    tokens, segments, lengths = _flat(encoding)
    alone = tokenizer(mask)
    before = alone.char_to_token(0)  # special tokens at the start and at the end
    after = len(alone["input_ids"]) - before - 1
    left, right = _shares(masks - before, lengths - masks - 1 - after, max_length - before - after)
    place = np.arange(len(tokens)) - np.repeat(offsets_of(lengths)[:-1], lengths)
    cut_left = (place >= np.repeat(before + left, lengths)) & (place < np.repeat(masks, lengths))
    cut_right = (place > np.repeat(masks + right, lengths)) & (
        place < np.repeat(lengths - after, lengths)
    )
    keep, whole = ~(cut_left | cut_right), lengths
    lengths, read = before + left + 1 + right + after, before + left
    labels, cut = examples.labels[chunk], lengths < whole
    return tokens[keep], segments[keep], lengths, read, labels, cut, np.empty(0, object)


def by_word(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Tokenize words; a word's first token has its label, all others have IGNORED.

    Truncated words and words without tokens are listed, because metrics count them as missed.
    """
    # A byte-level tokenizer marks words by the space before them, which a list of words lacks.
    space = "" if tokenizer.tokenize(" a") == tokenizer.tokenize("a") else " "
    encoding = tokenizer(
        [[space + word for word in words] for words in examples.text[chunk]],
        is_split_into_words=True,
        truncation=True,
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    tokens, segments, lengths = _flat(encoding)
    labels, unread = [], np.empty(len(lengths), object)
    for row, tags in enumerate(examples.labels[chunk]):
        of_tokens, unread[row] = _token_labels(encoding.word_ids(row), tags)
        labels.append(of_tokens)
    read = np.zeros(len(lengths), np.int32)
    joined = np.concatenate(labels)
    return tokens, segments, lengths, read, joined, _shortened(encoding), unread


def _shortened(encoding: BatchEncoding) -> np.ndarray:
    """Return whether each text lost tokens to the limit of its length, bool ``[n]``."""
    return np.array([bool(text.overflowing) for text in encoding.encodings], bool)


def _token_labels(
    word_of_token: list[int | None], tags: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of a text's tokens ``[T]``, and its words without a token, as in Cut.

    Special tokens have the word None.
    """
    words = np.array([-1 if word is None else word for word in word_of_token], dtype=np.int64)
    labels = np.full(len(words), IGNORED, dtype=np.int64)
    present, first = np.unique(words, return_index=True)
    real = present >= 0
    labels[first[real]] = tags[present[real]]
    has_token = np.isin(np.arange(len(tags)), present)
    if has_token.all():
        return labels, _ALL_READ
    before = np.cumsum(has_token)[~has_token]
    return labels, np.stack([before, tags[~has_token]], axis=1)


def _flat(encoding: BatchEncoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens and segments ``[total]`` and lengths ``[n]`` of an encoding."""
    tokens = np.fromiter(chain.from_iterable(encoding["input_ids"]), np.int32)
    segments = np.fromiter(chain.from_iterable(encoding["token_type_ids"]), np.uint8)
    return tokens, segments, np.array([len(ids) for ids in encoding["input_ids"]], np.int64)


def _shares(left: np.ndarray, right: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of tokens to keep left and right of the mask, ``room`` in all with it.

    The longer side is truncated to the length of the shorter one before both are.
    """
    room -= 1
    stay = np.minimum(right, np.maximum(room - left, room // 2))
    return np.minimum(left, room - stay), stay
