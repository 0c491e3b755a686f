"""The partition of a simulated run, read from its partition.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import printable
from server.records import FailedClient

PARTITION = "partition.json"
_BARS = 60  # clients that a picture can tell apart
_COLUMNS = 120  # of a picture of more clients, sorted by size
_LONGEST = 60  # characters of a client's name
_LARGEST = 64 << 20  # bytes of a file that is read for a page


@dataclass(frozen=True)
class Spread:
    """Number of training examples of each client.

    Attributes:
        sizes: examples of each client.
        labels: names of the classes; empty for tasks that predict a score.
        counts: examples of each client and class, [clients][classes].
        digest: SHA-256 of the partition.
        names: of the clients, where a column of the data names them; otherwise empty.
    """

    sizes: list[int]
    labels: list[str]
    counts: list[list[int]]
    digest: str = ""
    names: Sequence[str] = ()


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
        names = [str(name) for name in read.get("names", [])]
        if names and len(names) != len(sizes):
            return None
        return Spread(sizes, labels, counts, str(read["digest"]), names)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def names_of(folder: Path) -> Sequence[str]:
    """Return the names of a run's clients, where a column of the data names them."""
    spread = read_spread(folder)
    return spread.names if spread else ()


def called(failed: FailedClient, names: Sequence[str]) -> str:
    """Return a client that failed as text, with the name of its node or else of its data."""
    client = failed["client"]
    name = failed.get("name") or (names[client] if client < len(names) else "")
    return f"client {client}{name and f' ({printable(name, _LONGEST)})'}"


def drawn(spread: Spread) -> dict[str, Any]:
    """Return a partition for a page: at most 120 bars, each stacked by class.

    Returns:
        ``clients``: their number; ``labels``; ``sorted``: whether the bars are sorted by size and
        stand for some of the clients; ``bars``: examples by class, [bars][classes or 1];
        ``names``: of the bars' clients, or empty;
        ``smallest``, ``median`` and ``largest`` number of examples of a client.
    """
    heights = np.array(spread.counts if spread.labels else [[size] for size in spread.sizes])
    many = len(heights) > _BARS
    shown = [*range(len(heights))]
    if many:
        places = np.linspace(0, len(heights) - 1, min(_COLUMNS, len(heights))).round().astype(int)
        shown = np.argsort(-heights.sum(axis=1), kind="stable")[places].tolist()
    return {
        "clients": len(spread.sizes),
        "labels": [str(label) for label in spread.labels],
        "sorted": many,
        "bars": heights[shown].tolist(),
        "names": [spread.names[client] for client in shown] if spread.names else [],
        "smallest": min(spread.sizes, default=0),
        "median": float(np.median(spread.sizes)) if spread.sizes else 0.0,
        "largest": max(spread.sizes, default=0),
    }
