"""A partition of a task's training examples over clients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np

from fedpeft.batches.encoded import offsets_of
from fedpeft.files import write_atomic
from fedpeft.tasks import Task

#: Partitions of more clients are not written to files.
MOST_SAVED = 10_000


@dataclass(frozen=True)
class Partition(Sequence[np.ndarray]):
    """For each client the indices of its examples, int64, in two arrays.

    Attributes:
        rows: indices, client after client, int64 [n].
        offsets: those of client i start at ``offsets[i]`` and end at ``offsets[i + 1]``.
        names: of the clients, where a column of the data names them; otherwise empty.
    """

    rows: np.ndarray
    offsets: np.ndarray
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Partition:
        """Return the partition with these indices for each client."""
        empty = np.empty(0, np.int64)
        return cls(
            np.concatenate([empty, *rows]), offsets_of(np.array([len(r) for r in rows], int))
        )

    @property
    def sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [clients]."""
        return np.diff(self.offsets)

    @property
    def clients(self) -> np.ndarray:
        """The client of each of ``rows``, int64 [n]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def ordered(self) -> Partition:
        """Return the partition with each client's indices in order."""
        return replace(self, rows=self.rows[np.lexsort((self.rows, self.clients))])

    def lists(self) -> list[list[int]]:
        """Return the indices of all clients as lists."""
        rows = self.rows.tolist()
        return [rows[start:end] for start, end in pairwise(self.offsets.tolist())]

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> list[np.ndarray]: ...
    def __getitem__(self, client: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(client, slice):
            return [self[each] for each in range(len(self))[client]]
        place = range(len(self))[client]
        return self.rows[self.offsets[place] : self.offsets[place + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def digest(self) -> str:
        """SHA-256 over the indices of all clients."""
        return hashlib.sha256(json.dumps(self.lists()).encode()).hexdigest()


def save(path: Path, rows: Partition, kind: str, task: Task) -> None:
    """Write a partition with its digest, names, and each client's number of examples per label.

    Nothing is written for more than ``MOST_SAVED`` clients.
    """
    if len(rows) > MOST_SAVED:
        return
    counts = {"labels": [*task.info.labels], "counts": label_counts(rows, task).tolist()}
    names = {"names": [*rows.names]} if rows.names else {}
    content = {"kind": kind, "digest": rows.digest, **names, "clients": rows.lists(), **counts}
    write_atomic(path, json.dumps(content) + "\n")


def label_counts(rows: Partition, task: Task) -> np.ndarray:
    """Return the number of examples of each client and label, int [clients, C].

    C is 0 for scores. For tags, words are counted.
    """
    labels, classes, clients = task.train.labels[rows.rows], len(task.info.labels), rows.clients
    if not classes:
        return np.zeros((len(rows), 0), dtype=np.int64)
    if labels.dtype == object:  # an array of tags for every text
        clients = np.repeat(clients, [len(tags) for tags in labels])
        labels = np.concatenate(list(labels))
    counts = np.bincount(clients * classes + labels, minlength=len(rows) * classes)
    return counts.reshape(len(rows), classes)
