"""Cutting a batch into parts of texts of similar length, so that little is padded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpeft.tasks.encoding import Encoded


def parts_by_length(
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    overhead: float,
    most: int | None = None,
) -> list[list[np.ndarray]]:
    """Return the parts of a batch: of each, the rows of every client; see ``cut_by_length``."""
    batches = [
        batch[np.argsort(-examples.lengths[batch], kind="stable")]
        for examples, batch in zip(data, batches, strict=True)
    ]
    lengths = [own.lengths[batch] for own, batch in zip(data, batches, strict=True)]
    return [[batch[cut] for batch in batches] for cut in cut_by_length(lengths, overhead, most)]


def cut_by_length(
    lengths: Sequence[np.ndarray], overhead: float, most: int | None = None
) -> list[slice]:
    """Return the parts of sorted batches: which rows of each client's pass together.

    A batch holds texts of all lengths, and one pass pads all to its longest. The parts are those
    that cost least: the tokens of all passes, padding included, plus the overhead of each pass.

    Args:
        lengths: the tokens of each client's texts, descending: a client with fewer texts is filled
            up where they are short.
        overhead: what a pass costs besides its tokens, in tokens.
        most: rows of a client in a part; None = any number.
    """
    ranks = max(len(each) for each in lengths)
    most = ranks if most is None else most
    longest = np.zeros(ranks, dtype=np.int64)  # of each rank's texts
    for each in lengths:
        longest[: len(each)] = np.maximum(longest[: len(each)], each)
    # cost[j]: the least cost of ranks 0 to j; began[j]: where the last of its parts begins.
    cost, began = np.zeros(ranks + 1), np.zeros(ranks + 1, dtype=np.int64)
    for stop in range(1, ranks + 1):
        starts = np.arange(max(0, stop - most), stop)
        tokens = (stop - starts) * longest[starts] * len(lengths)
        costs = cost[starts] + tokens + overhead
        best = int(costs.argmin())
        cost[stop], began[stop] = costs[best], starts[best]
    parts: list[slice] = []
    stop = ranks
    while stop:
        parts.append(slice(int(began[stop]), stop))
        stop = int(began[stop])
    return parts[::-1]
