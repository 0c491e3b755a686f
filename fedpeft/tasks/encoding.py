"""From texts to batches: every text is tokenised once a process, a batch is padded as it is made.

Token ids stay ragged in one array, so a large data set takes five bytes a token, and a batch is
as wide as its own longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.errors import UserError
from fedpeft.tasks.base import IGNORED, Examples
from fedpeft.tasks.tokens import around_mask, by_word, offsets_of, plain

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from fedpeft.modifications.packing import Packing

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


@dataclass(frozen=True)
class Batch:
    """A batch as torch tensors: N rows ordered in groups, N = groups * rows a group; T tokens.

    Attributes:
        input_ids: int64 ``[N, T]``.
        attention_mask: int64 ``[N, T]``.
        token_type_ids: int64 ``[N, T]``.
        read: int64 ``[N]``.
        labels: int64 or float ``[N]``; int64 ``[N, T]`` where tokens have labels, padded with
            IGNORED.
        weights: float ``[N]``, 1, or 0 for a row that only fills its group up.
        groups: number of groups.
        below: what was computed of the texts before, each ``[N, T, width]``, where padding has
            the numbers of some token, or ``[N, 1, width]``.
        packing: how the texts pass without their padding; None = as they are.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    read: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    groups: int
    below: tuple[torch.Tensor, ...] = ()
    packing: Packing | None = None


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

    from fedpeft.modifications.packing import Packing

    width = max(len(chosen) for chosen in rows)
    parts, weights = [], np.zeros((len(rows), width))
    for group, (examples, chosen) in enumerate(zip(encoded, rows, strict=True)):
        filler = chosen[0] if len(chosen) else examples.lengths.argmin()
        fill = np.full(width - len(chosen), filler, dtype=np.int64)
        parts.append(examples.select(np.concatenate([chosen.astype(np.int64), fill])))
        weights[group, : len(chosen)] = 1.0
    lengths = np.concatenate([part.lengths for part in parts])
    mask = np.arange(lengths.max()) < lengths[:, None]  # [N, T], a row's tokens come first
    known = [part.labels for part in parts]
    labels = _padded(known, mask, IGNORED) if parts[0].per_token else np.concatenate(known)
    read = np.concatenate([part.read for part in parts]).astype(np.int64)
    scored = labels.dtype.kind == "f"
    return Batch(
        torch.from_numpy(_padded([part.tokens for part in parts], mask, pad_id)).to(device),
        torch.from_numpy(mask.astype(np.int64)).to(device),
        torch.from_numpy(_padded([part.segments for part in parts], mask, 0)).to(device),
        torch.from_numpy(read).to(device),
        torch.from_numpy(labels).to(device, dtype if scored else torch.int64),
        torch.from_numpy(weights.reshape(-1)).to(device, dtype),
        len(rows),
        tuple(_padded_states(each, mask) for each in zip(*(p.below for p in parts), strict=True)),
        Packing.of(mask, len(rows), device, dtype),
    )


def _padded(parts: Sequence[np.ndarray], mask: np.ndarray, fill: int) -> np.ndarray:
    """Return int64 ``[N, T]`` with the numbers of ``parts``, row after row, where the mask is."""
    result = np.full(mask.shape, fill, dtype=np.int64)
    result[mask] = np.concatenate(parts)
    return result


def _padded_states(parts: Sequence[torch.Tensor], mask: np.ndarray) -> torch.Tensor:
    """Return ``[N, T, width]`` of representations token by token; those of texts as they are."""
    import torch

    states = torch.cat(list(parts))
    if states.dim() == 3:
        return states
    places = np.zeros(mask.shape, dtype=np.int64)
    places[mask] = np.arange(len(states))
    return states[torch.from_numpy(places).to(states.device)]


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
