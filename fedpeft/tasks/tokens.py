"""What a tokenizer makes of some texts: as they are, around a mask, or word by word."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.tasks.base import IGNORED, Examples

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

#: Tokens ``[total]``, segments ``[total]``, lengths ``[n]``, read ``[n]``, labels, as in Encoded.
Tokens = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return where each of n texts begins, and the end of the last, ``[n + 1]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def plain(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Take the tokenizer's own encoding."""
    encoding = tokenizer(
        examples.text[chunk],
        None if examples.text_pair is None else examples.text_pair[chunk],
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    tokens, segments, lengths = _flat(encoding)
    return tokens, segments, lengths, np.zeros(len(lengths), np.int32), examples.labels[chunk]


def around_mask(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Encode ``text <mask> text_pair``.

    The whole string is tokenised, because what stands beside the mask can change the tokens (a
    RoBERTa mask takes the space on its left), and cut afterwards.
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
    # Found by its place in the string: the text itself may contain a mask token too.
    masks = np.array([encoding.char_to_token(i, len(one) + 1) for i, one in enumerate(first)])
    tokens, segments, lengths = _flat(encoding)
    alone = tokenizer(mask)
    before = alone.char_to_token(0)  # special tokens at the start, and at the end
    after = len(alone["input_ids"]) - before - 1
    left, right = _shares(masks - before, lengths - masks - 1 - after, max_length - before - after)
    place = np.arange(len(tokens)) - np.repeat(offsets_of(lengths)[:-1], lengths)
    cut_left = (place >= np.repeat(before + left, lengths)) & (place < np.repeat(masks, lengths))
    cut_right = (place > np.repeat(masks + right, lengths)) & (
        place < np.repeat(lengths - after, lengths)
    )
    keep = ~(cut_left | cut_right)
    lengths, read = before + left + 1 + right + after, before + left
    return tokens[keep], segments[keep], lengths, read, examples.labels[chunk]


def by_word(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Tokens:
    """Tokenise word by word; a word's first token has its label, all others have IGNORED.

    Words that are cut off are not evaluated, nor are those the tokenizer makes no token of.
    """
    # A byte-level tokenizer marks a word by the space before it, which a list of words lacks.
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
    tags = enumerate(examples.labels[chunk])
    labels = np.concatenate([_first_tokens(encoding.word_ids(row), each) for row, each in tags])
    return tokens, segments, lengths, np.zeros(len(lengths), np.int32), labels


def _first_tokens(word_of_token: list[int | None], tags: np.ndarray) -> np.ndarray:
    """Return labels of a text's tokens ``[T]`` from those of its words; None is a special token."""
    words = np.array([-1 if word is None else word for word in word_of_token], dtype=np.int64)
    labels = np.full(len(words), IGNORED, dtype=np.int64)
    present, first = np.unique(words, return_index=True)
    real = present >= 0
    labels[first[real]] = tags[present[real]]
    return labels


def _flat(encoding: BatchEncoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens and segments ``[total]`` and lengths ``[n]`` of a tokenizer's reply."""
    tokens = np.fromiter(chain.from_iterable(encoding["input_ids"]), np.int32)
    segments = np.fromiter(chain.from_iterable(encoding["token_type_ids"]), np.uint8)
    return tokens, segments, np.array([len(ids) for ids in encoding["input_ids"]], np.int64)


def _shares(left: np.ndarray, right: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens stay on either side of the mask in ``room`` tokens, mask included.

    The longer side is cut down to the shorter one before both are cut.
    """
    room -= 1
    stay = np.minimum(right, np.maximum(room - left, room // 2))
    return np.minimum(left, room - stay), stay
