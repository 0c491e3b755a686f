"""Your own table files: task.name = "custom"."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.errors import UserError
from fedpeft.randomness import generator
from fedpeft.settings import TaskSection
from fedpeft.tasks.base import Task, TaskInfo
from fedpeft.tasks.readers import Columns, check_columns, label_texts, read_table, to_examples
from fedpeft.tasks.tagged import read_tagged_table, tags_of, to_tagged_examples

if TYPE_CHECKING:
    import pandas as pd

TASKS = (
    TaskInfo(
        "custom", "classes", (), False, "accuracy", None, "your own files (task.train, task.dev)"
    ),
)


def described(info: TaskInfo, section: TaskSection) -> TaskInfo | None:
    """Return what the settings alone say of the task; None if its labels are not among it."""
    if section.kind != "score" and not section.labels:
        return None
    return _info(info, section, section.labels)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Return the task of ``section.train`` and ``section.dev``, relative to ``section.path``.

    The classes are ``section.labels``, or else those found in the training file: numbers in
    numeric order, else text in alphabetical order; of tags "O" is the first. A label of a file
    that is not among them is refused. Without a dev file, ``section.held_out`` of the training
    file's rows are kept for evaluation; which, depends on the seed.

    Raises:
        UserError: a file is not named, not there, or not right.
    """
    if not section.train:
        raise UserError(
            "task.train is empty: task 'custom' needs a file (.tsv, .csv, ...); where only the "
            "nodes have data, set task.labels and federation.evaluation = 'clients'"
        )
    columns = Columns(section.text, section.label, section.text_pair, owner_column)
    if section.kind == "tags" and section.text_pair:
        raise UserError(
            f"task.text_pair = '{columns.text_pair}': tags have one text, not two; leave it out"
        )
    read = read_tagged_table if section.kind == "tags" else read_table
    train = Path(section.path) / section.train
    dev = Path(section.path) / section.dev if section.dev else train
    frame = read(train)
    check_columns(frame, train, columns)
    labels = section.labels or _found(frame, train, section)
    kept, held_out = (frame, read(dev)) if section.dev else _split(frame, train, section, seed)
    codes = None if section.kind == "score" else {name: at for at, name in enumerate(labels)}
    own = replace(columns, owner="")
    if section.kind == "tags":
        both = (
            to_tagged_examples(kept, train, columns, codes or {}),
            to_tagged_examples(held_out, dev, own, codes or {}),
        )
    else:
        both = to_examples(kept, train, columns, codes), to_examples(held_out, dev, own, codes)
    return Task(_info(info, section, labels), *both)


def _info(info: TaskInfo, section: TaskSection, labels: tuple[str, ...]) -> TaskInfo:
    """Return the task's description; with a tag "O" for words outside, it is about entities."""
    metric = {"score": "pearson", "classes": "accuracy", "tags": "accuracy"}[section.kind]
    if section.kind == "tags" and "O" in labels:
        metric = "f1"
    pair = bool(section.text_pair)
    return replace(info, kind=section.kind, labels=labels, pair=pair, metric=metric)


def _found(frame: pd.DataFrame, path: Path, section: TaskSection) -> tuple[str, ...]:
    """Return the labels of the training file; none for a score."""
    if section.kind == "score":
        return ()
    if section.kind == "classes":
        labels = sort_labels(label_texts(frame, path, section.label))
    else:
        tags = tags_of(frame, path, section.label)
        labels = sort_labels(tag for row in tags for tag in row)
        labels = tuple(sorted(labels, key=lambda label: label != "O"))  # "O" first, order kept
    if len(labels) < 2:
        raise UserError(f"{path}: column '{section.label}' has one label; expected two or more")
    return labels


def _split(
    frame: pd.DataFrame, path: Path, section: TaskSection, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to train on and those held out, each in the order of the file."""
    count = max(1, round(section.held_out * len(frame)))
    if count >= len(frame):
        raise UserError(
            f"{path}: has {len(frame)} rows; expected at least 2, to hold some out for evaluation "
            f"(or name a file with task.dev)"
        )
    chosen = generator(seed, "held-out").choice(len(frame), count, replace=False)
    held_out = np.isin(np.arange(len(frame)), chosen)
    return frame[~held_out], frame[held_out]


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different labels: by value if all are numbers, else alphabetically."""
    different = sorted(set(labels))
    try:
        values = {label: float(label) for label in different}
    except ValueError:
        return tuple(different)
    if not all(math.isfinite(value) for value in values.values()):  # "nan" is a word here
        return tuple(different)
    return tuple(sorted(different, key=values.__getitem__))
