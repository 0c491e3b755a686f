"""Account of what the limits of length cut from encoded texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cut:
    """What n encoded texts lost.

    Attributes:
        texts: whether a text or pair lost tokens to ``task.max_length``, bool ``[n]``.
        words: of tags, the words without a token, object ``[n]`` of int64 ``[k, 2]``: the number of
            words with a token before each, and its tag; otherwise None.
        targets: of text, number of tokens that each target lost to ``task.max_target``, int64
            ``[n]``; otherwise None.
        unwritable: of text, whether the tokenizer has no tokens that give the target back, bool
            ``[n]``; otherwise None.
    """

    texts: np.ndarray
    words: np.ndarray | None = None
    targets: np.ndarray | None = None
    unwritable: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> Cut:
        """Return the rows of an index array, in its order."""
        columns = self.words, self.targets, self.unwritable
        chosen = (None if column is None else column[rows] for column in columns)
        return Cut(self.texts[rows], *chosen)

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of cut texts, words without a token, cut and unwritable targets."""
        words = 0 if self.words is None else sum(map(len, self.words))
        targets, unwritable = (
            0 if column is None else np.count_nonzero(column)
            for column in (self.targets, self.unwritable)
        )
        return int(self.texts.sum()), int(words), int(targets), int(unwritable)
