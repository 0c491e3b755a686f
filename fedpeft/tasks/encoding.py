"""From texts to batches: every text is tokenised once a process, a batch is padded as it is made.

Token ids stay ragged in one array, so a large data set takes five bytes a token, and a batch is
as wide as its own longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedTokenizerBase

_CHUNK = 4096  # texts a tokenizer call: bounds the memory of its Python lists


@dataclass(frozen=True)
class Encoded:
    """Token ids of n texts, one after the other.

    Attributes:
        tokens: int32 ``[total]``.
        segments: token type ids, uint8 ``[total]``.
        offsets: text i is ``tokens[offsets[i]:offsets[i + 1]]``, int64 ``[n + 1]``.
        read: the position in its text that the head reads, int32 ``[n]``; -1 = the mean.
        labels: int64 classes or float64 scores, ``[n]``.
    """

    tokens: np.ndarray
    segments: np.ndarray
    offsets: np.ndarray
    read: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.read)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every text, int64 ``[n]``."""
        return np.diff(self.offsets)

    def select(self, rows: np.ndarray) -> Encoded:
        """Return the rows of an index array, in its order; a row may come more than once."""
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # position in the result + (where the row was - where it is now)
        source = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Encoded(
            self.tokens[source], self.segments[source], offsets, self.read[rows], self.labels[rows]
        )


@dataclass(frozen=True)
class Batch:
    """A batch as torch tensors: N rows ordered in groups, N = groups * rows a group; T tokens.

    Attributes:
        input_ids: int64 ``[N, T]``.
        attention_mask: int64 ``[N, T]``.
        token_type_ids: int64 ``[N, T]``.
        read: int64 ``[N]``.
        labels: int64 or float ``[N]``.
        weights: float ``[N]``, 1, or 0 for a row that only fills its group up.
        groups: number of groups.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    read: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    groups: int


def encode(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    representation: str,
    max_length: int,
) -> Encoded:
    """Tokenise all examples with a fast tokenizer.

    Args:
        examples: texts or pairs of texts.
        tokenizer: the backbone's.
        representation: "cls" and "mean" encode a text or pair in the tokenizer's own way; "mask"
            encodes the one string ``text <mask>`` or ``text <mask> text_pair`` (Gupta et al.
            2023, section 3.1), and the head reads the mask.
        max_length: longer texts are cut at their ends, the longer one of a pair first; never
            the mask or a special token.

    Raises:
        UserError: representation "mask" with a tokenizer that has no mask token.
    """
    if representation == "mask" and tokenizer.mask_token is None:
        raise UserError(
            "representation = 'mask': the backbone's tokenizer has no mask token; "
            "use 'cls' or 'mean'"
        )
    encode_chunk = _around_mask if representation == "mask" else _plain
    chunks = [
        encode_chunk(examples, slice(start, start + _CHUNK), tokenizer, max_length)
        for start in range(0, len(examples), _CHUNK)
    ]

    def join(part: int, dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(chunk[part] for chunk in chunks)], dtype=dtype)

    lengths, read = join(2, np.int64), join(3, np.int32)
    if representation == "mean":
        read = np.full_like(read, -1)
    return Encoded(join(0, np.int32), join(1, np.uint8), _offsets(lengths), read, examples.labels)


def collate(
    encoded: Sequence[Encoded],
    rows: Sequence[np.ndarray],
    pad_id: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Batch:
    """Return a batch whose group g holds ``rows[g]`` of ``encoded[g]``.

    A group shorter than the longest is filled up with copies of its first row of weight 0, an
    empty one with its shortest text: real texts, so that no padding row can make a NaN.

    Args:
        encoded: the examples of every group, at least one each.
        rows: an index array for every group; not all of them empty.
        pad_id: token id that fills a text up to the longest of the batch.
        device: where the tensors go.
        dtype: of the weights, and of the labels where they are scores.
    """
    import torch

    width = max(len(chosen) for chosen in rows)
    parts, weights = [], np.zeros((len(rows), width))
    for group, (examples, chosen) in enumerate(zip(encoded, rows, strict=True)):
        filler = chosen[0] if len(chosen) else examples.lengths.argmin()
        fill = np.full(width - len(chosen), filler, dtype=np.int64)
        parts.append(examples.select(np.concatenate([chosen.astype(np.int64), fill])))
        weights[group, : len(chosen)] = 1.0
    lengths = np.concatenate([part.lengths for part in parts])
    mask = np.arange(lengths.max()) < lengths[:, None]  # [N, T], a row's tokens come first
    tokens = np.full(mask.shape, pad_id, dtype=np.int64)
    tokens[mask] = np.concatenate([part.tokens for part in parts])
    segments = np.zeros(mask.shape, dtype=np.int64)
    segments[mask] = np.concatenate([part.segments for part in parts])
    labels = torch.from_numpy(np.concatenate([part.labels for part in parts]))
    return Batch(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(mask.astype(np.int64)).to(device),
        torch.from_numpy(segments).to(device),
        torch.from_numpy(np.concatenate([part.read for part in parts]).astype(np.int64)).to(device),
        labels.to(device, dtype if labels.is_floating_point() else torch.int64),
        torch.from_numpy(weights.reshape(-1)).to(device, dtype),
        len(rows),
    )


def batches(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator | None
) -> list[np.ndarray]:
    """Return the index arrays of one epoch: every row once, the last batch may be smaller.

    With a generator, rows of similar length come together so that little is padded: rows are
    shuffled, sorted by length within chunks of up to 50 batches, cut into batches, and the
    batches are shuffled. Without one, rows come in order of length, for evaluation.
    """
    count = len(lengths)
    if generator is None:
        return _cut(np.argsort(lengths, kind="stable"), batch_size)
    # At least four chunks: else a small client would see the same batches in every epoch.
    chunk = batch_size * min(50, max(1, count // (4 * batch_size)))
    parts = []
    for rows in _cut(generator.permutation(count), chunk):
        parts += _cut(rows[np.argsort(lengths[rows], kind="stable")], batch_size)
    return [parts[i] for i in generator.permutation(len(parts))]


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _flat(encoding: BatchEncoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens and segments ``[total]`` and lengths ``[n]`` of a tokenizer's reply."""
    tokens = np.fromiter(chain.from_iterable(encoding["input_ids"]), np.int32)
    segments = np.fromiter(chain.from_iterable(encoding["token_type_ids"]), np.uint8)
    return tokens, segments, np.array([len(ids) for ids in encoding["input_ids"]], np.int64)


def _plain(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, segments, lengths and read of the tokenizer's own encoding."""
    encoding = tokenizer(
        examples.text[chunk],
        None if examples.text_pair is None else examples.text_pair[chunk],
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    tokens, segments, lengths = _flat(encoding)
    return tokens, segments, lengths, np.zeros(len(lengths), np.int32)


def _around_mask(
    examples: Examples, chunk: slice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, segments, lengths and read of ``text <mask> text_pair``.

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
    place = np.arange(len(tokens)) - np.repeat(_offsets(lengths)[:-1], lengths)
    cut_left = (place >= np.repeat(before + left, lengths)) & (place < np.repeat(masks, lengths))
    cut_right = (place > np.repeat(masks + right, lengths)) & (
        place < np.repeat(lengths - after, lengths)
    )
    keep = ~(cut_left | cut_right)
    return tokens[keep], segments[keep], before + left + 1 + right + after, before + left


def _shares(left: np.ndarray, right: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens stay on either side of the mask in ``room`` tokens, mask included.

    The longer side is cut down to the shorter one before both are cut.
    """
    room -= 1
    stay = np.minimum(right, np.maximum(room - left, room // 2))
    return np.minimum(left, room - stay), stay
