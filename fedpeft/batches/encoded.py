"""Token ids of texts, ragged in one array: five bytes per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.batches.cut import Cut

if TYPE_CHECKING:
    import torch

IGNORED = -100  # label of a token without one, as in torch's cross entropy


@dataclass(frozen=True)
class Encoded:
    """Token ids of n texts, concatenated; with ``firsts``, of n pairs of texts.

    Attributes:
        tokens: int32 ``[total]``.
        segments: token type ids, uint8 ``[total]``.
        offsets: text i is ``tokens[offsets[i]:offsets[i + 1]]``, int64 ``[n + 1]``.
        read: position in the text that the head reads, int32 ``[n]``; -1 = the mean. For text,
            that from which the target's first token is predicted.
        labels: int64 classes or float64 scores, ``[n]``; with ``per_token`` int64 classes
            ``[total]``, IGNORED where a token has none. For text, they are the next tokens.
        per_token: whether tokens have labels; otherwise texts have.
        states: hidden states computed before, ``[total, width]``, aligned with ``tokens``, or
            ``[n, 1, width]``, one row per text; see ``fedpeft.batches.kept``.
        label_offsets: as ``offsets``, for labels that are not aligned with the tokens: those of an
            encoder-decoder.
        targets: the texts to write as strings, object ``[n]``, to compare generated texts with.
        firsts: of pairs whose texts pass on their own: number of tokens of each first text, int64
            ``[n]``. The second text follows it; ``read`` is the same in both.
        cut: what the texts lost; None = not known.
    """

    tokens: np.ndarray
    segments: np.ndarray
    offsets: np.ndarray
    read: np.ndarray
    labels: np.ndarray
    per_token: bool = False
    states: torch.Tensor | None = None
    label_offsets: np.ndarray | None = None
    targets: np.ndarray | None = None
    firsts: np.ndarray | None = None
    cut: Cut | None = None

    def __len__(self) -> int:
        return len(self.read)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every text or pair, int64 ``[n]``."""
        return np.diff(self.offsets)

    @property
    def apart(self) -> int:
        """Number of texts of an example that pass on their own: 2 of pairs with ``firsts``."""
        return 1 if self.firsts is None else 2

    @property
    def text_lengths(self) -> np.ndarray:
        """Number of tokens of every text that passes on its own, int64 ``[n * apart]``."""
        if self.firsts is None:
            return self.lengths
        return np.stack([self.firsts, self.lengths - self.firsts], axis=1).reshape(-1)

    @property
    def padded(self) -> np.ndarray:
        """Number of tokens of every example with its texts at one length, int64 ``[n]``."""
        return self.apart * self.text_lengths.reshape(-1, self.apart).max(1, initial=0)

    @property
    def label_lengths(self) -> np.ndarray:
        """Number of labels of every text whose tokens have labels, int64 ``[n]``."""
        return self.lengths if self.label_offsets is None else np.diff(self.label_offsets)

    def select(self, rows: np.ndarray) -> Encoded:
        """Return the rows of an index array, in its order; rows may repeat."""
        source, states, starts = self.places(rows), self.states, self.label_offsets
        labelled = source if self.per_token else rows
        if starts is not None:
            labelled = _places(starts, rows)
            starts = offsets_of(np.diff(starts)[rows])
        if states is not None:
            states = states[rows if states.dim() == 3 else source]
        return Encoded(
            self.tokens[source],
            self.segments[source],
            offsets_of(self.lengths[rows]),
            self.read[rows],
            self.labels[labelled],
            self.per_token,
            states,
            starts,
            None if self.targets is None else self.targets[rows],
            None if self.firsts is None else self.firsts[rows],
            None if self.cut is None else self.cut.select(rows),
        )

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices into ``tokens`` of the tokens of some rows, row after row."""
        return _places(self.offsets, rows)


def _places(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    lengths = np.diff(starts)[rows]
    offsets = offsets_of(lengths)
    # position in the result + (start of the row in the array - its start in the result)
    return np.arange(offsets[-1]) + np.repeat(starts[rows] - offsets[:-1], lengths)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the start of each of n texts and the end of the last, ``[n + 1]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
