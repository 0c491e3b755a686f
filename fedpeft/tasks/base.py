"""What a task is: texts with labels to train on and to evaluate on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["classes", "score", "tags"]  # tags: a class for every word of a text
Text = str | list[str]  # a list of words where they are tagged

IGNORED = -100  # label of a token that is not evaluated, as in torch's cross entropy


@dataclass(frozen=True)
class TaskInfo:
    """What is known about a task before its data is read; `fedpeft tasks` lists it.

    Attributes:
        labels: names of the classes or tags in the order of their indices; empty for a score,
            and for 'custom' until its data is read.
        pair: whether an example is a pair of texts.
        metric: the primary one: "accuracy", "f1", "matthews" or "pearson".
        best: the best score anything can reach, where that is known.
        folder: name of its folder in ``task.path``, for example "SST-2".
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    pair: bool
    metric: str
    best: float | None
    description: str
    folder: str = ""

    @property
    def classes(self) -> int:
        """Number of outputs of the head: one for every class or tag, or one for a score."""
        return 1 if self.kind == "score" else len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, n rows.

    Attributes:
        text: strings, or for tags lists of words.
        text_pair: the second text of every row, or None.
        labels: int64 class indices or float64 scores, shape ``[n]``; for tags an object array
            ``[n]`` of int64 arrays, one class index a word (``tag_column``).
        owners: whose example each row is, where a column with that was asked for.
    """

    text: Sequence[Text]
    text_pair: list[str] | None
    labels: np.ndarray
    owners: list[str] | None = None

    def __len__(self) -> int:
        return len(self.text)

    @property
    def tagged(self) -> bool:
        """Whether the labels belong to words."""
        return self.labels.dtype == object

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


def tag_column(rows: Iterable[Iterable[int]]) -> np.ndarray:
    """Return the class indices of the words of n texts as an object array ``[n]``."""
    tags = [np.array([*row], dtype=np.int64) for row in rows]
    column = np.empty(len(tags), dtype=object)
    for row, indices in enumerate(tags):  # at once, rows of equal length would become a matrix
        column[row] = indices
    return column


@dataclass(frozen=True)
class Task:
    """A task with its data; the labels in ``info`` are filled in."""

    info: TaskInfo
    train: Examples
    dev: Examples
