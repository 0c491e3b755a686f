"""Encoded texts of chosen lengths, made of numbers that say where they came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpeft.batches.encoded import Encoded


def ragged(
    lengths: Sequence[int] | np.ndarray, first: int = 10, labels: np.ndarray | None = None
) -> Encoded:
    """Row i holds the tokens 100 * i + first, ..., so that every token names its row."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([100 * i + first + np.arange(n) for i, n in enumerate(lengths)])
    labels = np.arange(len(lengths)) if labels is None else labels
    read = np.arange(len(lengths), dtype=np.int32) - 1
    return Encoded(tokens.astype(np.int32), (tokens % 2).astype(np.uint8), offsets, read, labels)
