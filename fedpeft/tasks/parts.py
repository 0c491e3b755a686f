"""How the texts of a batch pass through the backbone, so that little time goes into padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpeft.tasks.encoding import Encoded


@dataclass(frozen=True)
class Costs:
    """What a pass through the backbone costs besides its tokens, in tokens.

    Attributes:
        each: every pass.
        packing: a pass whose texts are packed.
        moving: a packed token, besides itself.
    """

    each: float
    packing: float
    moving: float


def passes_of(
    data: Sequence[Encoded], batches: Sequence[np.ndarray], costs: Costs, packs: bool
) -> tuple[list[list[np.ndarray]], bool]:
    """Return the passes of a batch, of each the rows of every client, and whether they are packed.

    The texts pass all at once without their padding, or padded in parts: whichever costs less.

    Args:
        data: every client's texts.
        batches: the rows of each client's batch.
        costs: of passes.
        packs: whether packing is possible.
    """
    parts = parts_by_length(data, batches, costs.each)
    if not packs:
        return parts, False
    lengths = [own.lengths[batch] for own, batch in zip(data, batches, strict=True)]
    tokens = max(int(each.sum()) for each in lengths)
    packed = costs.each + costs.packing + (1 + costs.moving) * len(data) * tokens
    padded = sum(costs.each + _padded_tokens(data, part) for part in parts)
    return ([[*batches]], True) if packed < padded else (parts, False)


def _padded_tokens(data: Sequence[Encoded], rows: Sequence[np.ndarray]) -> int:
    """Return how many tokens a padded pass has."""
    lengths = [own.lengths[chosen] for own, chosen in zip(data, rows, strict=True)]
    longest = max(int(each.max(initial=0)) for each in lengths)
    return len(data) * max(map(len, lengths)) * longest


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
