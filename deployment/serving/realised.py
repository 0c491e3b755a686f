"""A bounded cache of realised vectors: the numbers that a pass needs, made from z once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deployment.serving.catalog import Entry
from deployment.serving.setups import Setup


class RealisedRows:
    """Rows [R] of the least recently used entries are dropped first.

    Args:
        limit: maximum bytes kept.

    Attributes:
        size: bytes kept now.
        hits: rows that were kept.
        misses: rows that were computed.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._rows: OrderedDict[Entry, Tensor] = OrderedDict()
        self._changing = threading.Lock()
        self.size = self.hits = self.misses = 0

    def of(self, entries: Sequence[Entry]) -> list[Tensor]:
        """Return the row of each entry; those that are missing are computed in one product."""
        with self._changing:
            found = {entry: self._rows[entry] for entry in entries if entry in self._rows}
            for entry in found:
                self._rows.move_to_end(entry)
        missing: dict[Setup, list[Entry]] = {}
        for entry in dict.fromkeys(entries):
            if entry not in found:
                missing.setdefault(entry.setup, []).append(entry)
        for setup, group in missing.items():
            found |= zip(group, _computed(setup, group), strict=True)
        self._keep([entry for group in missing.values() for entry in group], found)
        self.misses += sum(map(len, missing.values()))
        self.hits += len(dict.fromkeys(entries)) - sum(map(len, missing.values()))
        return [found[entry] for entry in entries]

    def forget(self, entry: Entry) -> None:
        """Drop the row of an entry that is no longer served."""
        with self._changing:
            if (row := self._rows.pop(entry, None)) is not None:
                self.size -= row.nbytes

    def _keep(self, entries: Sequence[Entry], rows: dict[Entry, Tensor]) -> None:
        with self._changing:
            for entry in entries:
                if rows[entry].nbytes <= self._limit and entry not in self._rows:
                    self._rows[entry] = rows[entry]
                    self.size += rows[entry].nbytes
            while self.size > self._limit:
                self.size -= self._rows.popitem(last=False)[1].nbytes


def _computed(setup: Setup, entries: Sequence[Entry]) -> list[Tensor]:
    """Return the rows of entries of one setup, each in memory of its own."""
    vectors = torch.from_numpy(np.stack([entry.vector for entry in entries]))
    return [row.clone() for row in setup.rows(vectors.to(setup.family.device))]
