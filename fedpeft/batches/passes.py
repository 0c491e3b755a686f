"""The passes of a batch through the backbone, cut and packed to save padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpeft.batches.encoded import Encoded


@dataclass(frozen=True)
class Costs:
    """Costs of a pass through the backbone besides those of its tokens, in tokens.

    Attributes:
        per_pass: cost of each pass.
        packing: additional cost of a packed pass.
        moving: additional cost of each packed token.
    """

    per_pass: float
    packing: float
    moving: float


# Fitted on one CPU core to widths 32 and 384, and on an H100 to width 768; mps is an estimate.
_SMALL = 22  # tokens; small matrix products are slow
#: Multiplications that fit in the time of a pass's calls, and how many times as many in 16 bits.
_CALLS = {"cpu": 5e5, "cuda": 6e8, "mps": 2e8}
_FASTER = {"cpu": 1, "cuda": 8, "mps": 1}
#: Calls of a packed pass besides those of a padded one, relative to these.
_PACKING = {"cpu": 0.5, "cuda": 1.0, "mps": 0.5}
#: Moves of packed numbers take the time of memory, not of multiplications: eight in each block.
#: On a CPU 13 by calculation; with it, MiniLM trained slower on texts of similar length than
#: unpacked.
_MOVES = {"cpu": 30, "cuda": 90, "mps": 30}


def pass_costs(device: str, width: int, vector_size: int, lowered: bool = False) -> Costs:
    """Return the costs of a pass.

    Args:
        device: type of the torch device.
        width: width of the backbone.
        vector_size: length P of the task vector.
        lowered: whether products are in 16 bits.
    """
    calls = _CALLS[device] * (_FASTER[device] if lowered else 1)
    per_pass = _SMALL + (calls + vector_size) / width**2
    return Costs(per_pass, _PACKING[device] * calls / width**2, _MOVES[device] / width)


def passes_of(
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    costs: Costs,
    packs: bool,
    most: int | None = None,
) -> tuple[list[list[np.ndarray]], bool]:
    """Return the rows of each client in each pass of a batch, and whether the passes are packed.

    The batch is packed in as few passes as ``most`` allows, or padded in several, whichever costs
    less.

    Args:
        data: texts of each client.
        batches: rows of each client's batch.
        costs: costs of a pass.
        packs: whether packing is possible.
        most: largest number of rows of a client in a pass; None = any number.
    """
    parts = parts_by_length(data, batches, costs.per_pass, most)
    if not packs:
        return parts, False
    longest = max(map(len, batches))
    step = longest if most is None else most
    whole = [[rows[at : at + step] for rows in batches] for at in range(0, longest, step or 1)]
    extra = costs.per_pass + costs.packing
    packed = sum(extra + (1 + costs.moving) * _packed_tokens(data, part) for part in whole)
    padded = sum(costs.per_pass + _padded_tokens(data, part) for part in parts)
    return (whole, True) if packed < padded else (parts, False)


def _packed_tokens(data: Sequence[Encoded], rows: Sequence[np.ndarray]) -> int:
    """Return the number of tokens of a packed pass, with the texts that fill up shorter groups."""
    most = max(map(len, rows))
    shortest = [texts.lengths.min() for texts in data]
    return len(data) * max(
        int(own.sum()) + (most - len(own)) * int(own.min(initial=other))
        for own, other in zip(_lengths(data, rows), shortest, strict=True)
    )


def _lengths(data: Sequence[Encoded], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [texts.lengths[chosen] for texts, chosen in zip(data, rows, strict=True)]


def _padded(data: Sequence[Encoded], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [texts.padded[chosen] for texts, chosen in zip(data, rows, strict=True)]


def _padded_tokens(data: Sequence[Encoded], rows: Sequence[np.ndarray]) -> int:
    """Return the number of tokens of a padded pass."""
    lengths = _padded(data, rows)
    longest = max(int(client.max(initial=0)) for client in lengths)
    return len(data) * max(map(len, lengths)) * longest


def parts_by_length(
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    overhead: float,
    most: int | None = None,
) -> list[list[np.ndarray]]:
    """Return the rows of each client in each part of a batch; see ``cut_by_length``."""
    batches = [
        batch[np.argsort(-examples.padded[batch], kind="stable")]
        for examples, batch in zip(data, batches, strict=True)
    ]
    lengths = _padded(data, batches)
    return [[batch[cut] for batch in batches] for cut in cut_by_length(lengths, overhead, most)]


def cut_by_length(
    lengths: Sequence[np.ndarray], overhead: float, most: int | None = None
) -> list[slice]:
    """Return the parts into which sorted batches are cut, as slices of each client's rows.

    A pass pads its texts to the longest. The parts minimize the number of tokens of all passes,
    padding included, plus the overhead of each pass.

    Args:
        lengths: numbers of tokens of each client's texts, descending, so that clients with fewer
            texts are filled up where texts are short.
        overhead: cost of a pass besides its tokens, in tokens.
        most: largest number of rows of a client in a part; None = any number.
    """
    ranks = max(map(len, lengths))
    most = ranks if most is None else most
    longest = np.zeros(ranks, dtype=np.int64)  # of the texts of each rank
    for client in lengths:
        longest[: len(client)] = np.maximum(longest[: len(client)], client)
    # cost[j]: least cost of ranks 0 to j; began[j]: start of the last of its parts.
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
