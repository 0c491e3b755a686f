"""Tasks: texts with labels to train and evaluate on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

#: tags: one class per word of a text; text: a text written for a text.
Kind = Literal["classes", "score", "tags", "text"]
Text = str | list[str]  # a list of words for tags


@dataclass(frozen=True)
class TaskInfo:
    """Description of a task, known before its data is read; `fedpeft tasks` lists it.

    Attributes:
        labels: names of the classes or tags by index; empty for a score and for text, and for
            'custom' until its data is read.
        pair: whether an example is a pair of texts.
        metric: primary metric: "accuracy", "f1", "matthews" or "pearson"; for text also "exact",
            "rougeL", "bleu" or "chrf".
        best: the best possible score, if known.
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
        """Number of outputs of the head: one per class or tag, one for a score, 0 for text."""
        return 1 if self.kind == "score" else len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, n rows.

    Attributes:
        text: strings; for tags lists of words.
        text_pair: second text of every row, or None.
        labels: int64 class indices or float64 scores, shape ``[n]``; for tags an object array
            ``[n]`` of int64 arrays, one class index per word (``tag_column``); zeros for text.
        owners: owner of each row, or None.
        targets: the texts to write, of a task of text, or None.
    """

    text: Sequence[Text]
    text_pair: list[str] | None
    labels: np.ndarray
    owners: list[str] | None = None
    targets: list[str] | None = None

    def __len__(self) -> int:
        return len(self.text)

    @property
    def tagged(self) -> bool:
        """Whether the labels are tags of words."""
        return self.labels.dtype == object

    def content(self) -> Iterator[bytes]:
        """Yield bytes that determine all texts and labels."""
        yield json.dumps([self.text, self.text_pair]).encode()
        if self.targets is not None:
            yield json.dumps(self.targets).encode()
        labels = np.concatenate(list(self.labels)) if self.tagged else self.labels
        yield labels.tobytes()

    def select(self, rows: np.ndarray) -> Examples:
        """Return the rows of an index array, in that order."""

        def pick(column: list[str] | None) -> list[str] | None:
            return None if column is None else [column[row] for row in rows]

        return Examples(
            [self.text[row] for row in rows],
            pick(self.text_pair),
            self.labels[rows],
            pick(self.owners),
            pick(self.targets),
        )


def tag_column(rows: Iterable[Iterable[int]]) -> np.ndarray:
    """Pack the class indices of the words of n texts into an object array ``[n]``."""
    tags = [np.array([*row], dtype=np.int64) for row in rows]
    column = np.empty(len(tags), dtype=object)
    for row, indices in enumerate(tags):  # np.array would make a matrix of rows of equal length
        column[row] = indices
    return column


@dataclass(frozen=True)
class Task:
    """A task with its data; ``info`` has all labels."""

    info: TaskInfo
    train: Examples
    dev: Examples
