"""What a task is: texts with labels to train on and to evaluate on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["classes", "score"]


@dataclass(frozen=True)
class TaskInfo:
    """What is known about a task before its data is read; `fedpeft tasks` lists it.

    Attributes:
        labels: names of the classes in the order of their indices; empty for a score, and for
            'custom' until its data is read.
        pair: whether an example is a pair of texts.
        metric: the primary one: "accuracy", "f1", "matthews" or "pearson".
        best: the best score anything can reach, where that is known.
        folder: name of GLUE's folder, for example "SST-2".
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    pair: bool
    metric: str
    best: float | None
    description: str
    folder: str = ""


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, n rows.

    Attributes:
        text_pair: the second text of every row, or None.
        labels: int64 class indices or float64 scores, shape ``[n]``.
        owners: whose example each row is, where a column with that was asked for.
    """

    text: list[str]
    text_pair: list[str] | None
    labels: np.ndarray
    owners: list[str] | None = None

    def __len__(self) -> int:
        return len(self.text)

    def select(self, rows: np.ndarray) -> Examples:
        """Return the rows of an index array, in its order."""

        def pick(column: list[str] | None) -> list[str] | None:
            return None if column is None else [column[row] for row in rows]

        return Examples(
            [self.text[row] for row in rows],
            pick(self.text_pair),
            self.labels[rows],
            pick(self.owners),
        )


@dataclass(frozen=True)
class Task:
    """A task with its data; the labels in ``info`` are filled in."""

    info: TaskInfo
    train: Examples
    dev: Examples

    @property
    def classes(self) -> int:
        """Number of outputs of the head: one for every class, or one for a score."""
        return len(self.info.labels) if self.info.kind == "classes" else 1
