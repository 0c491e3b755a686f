"""The partition of a simulated run, read from its partition.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PARTITION = "partition.json"
_BARS = 60  # clients that a picture can tell apart
_COLUMNS = 120  # of a picture of more clients, sorted by size
_LARGEST = 64 << 20  # bytes of a file that is read for a page


@dataclass(frozen=True)
class Spread:
    """Number of training examples of each client.

    Attributes:
        sizes: examples of each client.
        labels: names of the classes; empty for tasks that predict a score.
        counts: examples of each client and class, [clients][classes].
        digest: SHA-256 of the partition.
    """

    sizes: list[int]
    labels: list[str]
    counts: list[list[int]]
    digest: str = ""


def read_spread(folder: Path) -> Spread | None:
    """Return the partition in a run's folder; None if there is none that can be read."""
    try:
        path = folder / PARTITION
        if path.stat().st_size > _LARGEST:
            return None
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sizes = [len(rows) for rows in read["clients"]]
        # Runs of an earlier version have no counts.
        labels, counts = read.get("labels", []), read.get("counts", [])
        return Spread(sizes, labels, counts, str(read["digest"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drawn(spread: Spread) -> dict[str, Any]:
    """Return a partition for a page: at most 120 bars, each stacked by class.

    Returns:
        ``clients``: their number; ``labels``; ``sorted``: whether the bars are sorted by size and
        stand for some of the clients; ``bars``: examples by class, [bars][classes or 1];
        ``smallest``, ``median`` and ``largest`` number of examples of a client.
    """
    heights = np.array(spread.counts if spread.labels else [[size] for size in spread.sizes])
    many = len(heights) > _BARS
    if many:
        heights = heights[np.argsort(-heights.sum(axis=1), kind="stable")]
        places = np.linspace(0, len(heights) - 1, min(_COLUMNS, len(heights))).round().astype(int)
        heights = heights[places]
    return {
        "clients": len(spread.sizes),
        "labels": [str(label) for label in spread.labels],
        "sorted": many,
        "bars": heights.tolist(),
        "smallest": min(spread.sizes, default=0),
        "median": float(np.median(spread.sizes)) if spread.sizes else 0.0,
        "largest": max(spread.sizes, default=0),
    }
