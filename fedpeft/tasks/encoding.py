"""Tokenize texts, each once per process.

Token ids are ragged in one array, so a large data set takes five bytes per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpeft.batches.cut import Cut
from fedpeft.batches.encoded import Encoded, offsets_of
from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.tokens import around_mask, by_word, plain

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_CHUNK = 4096  # texts per call of the tokenizer: bounds the memory of its Python lists


def encode(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    representation: str,
    max_length: int,
    apart: bool = False,
) -> Encoded:
    """Tokenize all examples with a fast tokenizer.

    Args:
        examples: texts, pairs of texts, or words with tags. For tags, the first token of a word
            has its label, and the representation is ignored.
        tokenizer: the backbone's tokenizer.
        representation: "cls", "mean", "unit" and "last" use the tokenizer's encoding of a text or
            pair, and the head reads its first token, the mean (twice) or its last token; "mask"
            encodes the single string ``text <mask>`` or ``text <mask> text_pair`` (Gupta et al.
            2023, section 3.1), and the head reads the mask.
        max_length: longer texts are truncated at the end, the longer one of a pair first; the mask
            and special tokens are kept.
        apart: whether the texts of pairs pass on their own, each of at most ``max_length`` tokens.

    Raises:
        UserError: representation "mask" with a tokenizer that has no mask token.
    """
    if apart:
        return _apart(examples, tokenizer, representation, max_length)
    if examples.tagged:
        representation, encode_chunk = "", by_word
    else:
        encode_chunk = around_mask if representation == "mask" else plain
    if representation == "mask" and tokenizer.mask_token is None:
        raise UserError(
            "representation = 'mask': the backbone's tokenizer has no mask token; "
            "use 'cls', 'mean' or 'last'"
        )
    chunks = [
        encode_chunk(examples, slice(start, start + _CHUNK), tokenizer, max_length)
        for start in range(0, len(examples), _CHUNK)
    ]

    def join(part: int, dtype: np.typing.DTypeLike) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(chunk[part] for chunk in chunks)], dtype=dtype)

    lengths, read = join(2, np.int64), join(3, np.int32)
    if representation in ("mean", "unit"):
        read = np.full_like(read, -1)
    if representation == "last":
        read = (lengths - 1).astype(np.int32)
    labels = join(4, np.int64 if examples.tagged else examples.labels.dtype)
    tokens, segments = join(0, np.int32), join(1, np.uint8)
    cut = Cut(join(5, np.bool_), join(6, object) if examples.tagged else None)
    return Encoded(tokens, segments, offsets_of(lengths), read, labels, examples.tagged, cut=cut)


def _apart(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, representation: str, max_length: int
) -> Encoded:
    """Return pairs whose texts pass on their own: the tokens of each pair, text after text."""
    assert examples.text_pair is not None, "check_fitting refuses tasks of one text"
    first, second = (
        encode(Examples(texts, None, examples.labels), tokenizer, representation, max_length)
        for texts in (examples.text, examples.text_pair)
    )
    count, shift = len(first), len(first.tokens)
    starts = np.stack([first.offsets[:-1], second.offsets[:-1] + shift], axis=1).reshape(-1)
    lengths = np.stack([first.lengths, second.lengths], axis=1).reshape(-1)
    offsets = offsets_of(lengths)
    assert first.cut and second.cut
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Encoded(
        np.concatenate([first.tokens, second.tokens])[places],
        np.concatenate([first.segments, second.segments])[places],
        offsets[::2] if count else offsets,
        first.read,
        first.labels,
        firsts=first.lengths,
        cut=Cut(first.cut.texts | second.cut.texts),
    )
