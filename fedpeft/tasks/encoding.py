"""From texts to token ids: every text is tokenised once a process.

Token ids stay ragged in one array, so a large data set takes five bytes a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.tokens import around_mask, by_word, offsets_of, plain

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


_CHUNK = 4096  # texts a tokenizer call: bounds the memory of its Python lists


@dataclass(frozen=True)
class Encoded:
    """Token ids of n texts, one after the other.

    Attributes:
        tokens: int32 ``[total]``.
        segments: token type ids, uint8 ``[total]``.
        offsets: text i is ``tokens[offsets[i]:offsets[i + 1]]``, int64 ``[n + 1]``.
        read: the position in its text that the head reads, int32 ``[n]``; -1 = the mean.
        labels: int64 classes or float64 scores, ``[n]``; with ``per_token`` int64 classes
            ``[total]``, IGNORED where a token has none.
        per_token: whether every token has a label, not every text.
        below: what was computed of the texts before, each ``[total, width]``, aligned with
            ``tokens``, or ``[n, 1, width]``, one a text; see ``fedpeft.below``.
    """

    tokens: np.ndarray
    segments: np.ndarray
    offsets: np.ndarray
    read: np.ndarray
    labels: np.ndarray
    per_token: bool = False
    below: tuple[torch.Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.read)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every text, int64 ``[n]``."""
        return np.diff(self.offsets)

    def select(self, rows: np.ndarray) -> Encoded:
        """Return the rows of an index array, in its order; a row may come more than once."""
        source = self.places(rows)
        return Encoded(
            self.tokens[source],
            self.segments[source],
            offsets_of(self.lengths[rows]),
            self.read[rows],
            self.labels[source if self.per_token else rows],
            self.per_token,
            tuple(each[rows if each.dim() == 3 else source] for each in self.below),
        )

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return where in ``tokens`` the tokens of some rows are, row after row."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        # position in the result + (where the row was - where it is now)
        return np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)


def encode(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    representation: str,
    max_length: int,
) -> Encoded:
    """Tokenise all examples with a fast tokenizer.

    Args:
        examples: texts or pairs of texts, or words with tags: of these the first token of a
            word carries its label, and the representation is not used.
        tokenizer: the backbone's.
        representation: "cls" and "mean" encode a text or pair in the tokenizer's own way; "mask"
            encodes the one string ``text <mask>`` or ``text <mask> text_pair`` (Gupta et al.
            2023, section 3.1), and the head reads the mask.
        max_length: longer texts are cut at their ends, the longer one of a pair first; never
            the mask or a special token.

    Raises:
        UserError: representation "mask" with a tokenizer that has no mask token.
    """
    if examples.tagged:
        representation, encode_chunk = "", by_word
    else:
        encode_chunk = around_mask if representation == "mask" else plain
    if representation == "mask" and tokenizer.mask_token is None:
        raise UserError(
            "representation = 'mask': the backbone's tokenizer has no mask token; "
            "use 'cls' or 'mean'"
        )
    chunks = [
        encode_chunk(examples, slice(start, start + _CHUNK), tokenizer, max_length)
        for start in range(0, len(examples), _CHUNK)
    ]

    def join(part: int, dtype: np.typing.DTypeLike) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(chunk[part] for chunk in chunks)], dtype=dtype)

    lengths, read = join(2, np.int64), join(3, np.int32)
    if representation == "mean":
        read = np.full_like(read, -1)
    labels = join(4, np.int64 if examples.tagged else examples.labels.dtype)
    tokens, segments = join(0, np.int32), join(1, np.uint8)
    return Encoded(tokens, segments, offsets_of(lengths), read, labels, examples.tagged)
