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
    """

    texts: np.ndarray
    words: np.ndarray | None = None
    targets: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> Cut:
        """Return the rows of an index array, in its order."""
        words = None if self.words is None else self.words[rows]
        return Cut(self.texts[rows], words, None if self.targets is None else self.targets[rows])

    def counts(self) -> tuple[int, int, int]:
        """Return the number of texts that were cut, of words without a token, of cut targets."""
        words = 0 if self.words is None else sum(map(len, self.words))
        targets = 0 if self.targets is None else np.count_nonzero(self.targets)
        return int(self.texts.sum()), int(words), int(targets)
