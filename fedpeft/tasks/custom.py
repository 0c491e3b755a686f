"""Your own table files: task.name = "custom"."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.settings import TaskSection
from fedpeft.tasks.base import Task, TaskInfo
from fedpeft.tasks.readers import Columns, check_columns, label_texts, read_table, to_examples
from fedpeft.tasks.tagged import read_tagged_table, tags_of, to_tagged_examples

TASKS = (
    TaskInfo(
        "custom", "classes", (), False, "accuracy", None, "your own files (task.train, task.dev)"
    ),
)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Return the task of ``section.train`` and ``section.dev``, relative to ``section.path``.

    The classes are those found in the training file: numbers in numeric order, else text in
    alphabetical order; of tags "O" is the first. A label of the dev file that is not among them
    is refused.

    Raises:
        UserError: a file is not named, not there, or not right.
    """
    for key, value in (("train", section.train), ("dev", section.dev)):
        if not value:
            raise UserError(f"task.{key} is empty: task 'custom' needs a file (.tsv, .csv, ...)")
    train, dev = (Path(section.path) / file for file in (section.train, section.dev))
    columns = Columns(section.text, section.label, section.text_pair, owner_column)
    if section.kind == "tags":
        return _tags(info, train, dev, columns)
    train_frame, dev_frame = read_table(train), read_table(dev)
    labels: tuple[str, ...] = ()
    codes = None
    if section.kind == "classes":
        check_columns(train_frame, train, columns)
        labels = sort_labels(label_texts(train_frame, train, section.label))
        _need_two(labels, train, section.label)
        codes = {label: index for index, label in enumerate(labels)}
    info = replace(
        info,
        kind=section.kind,
        labels=labels,
        pair=bool(section.text_pair),
        metric="accuracy" if section.kind == "classes" else "pearson",
    )
    return Task(
        info,
        to_examples(train_frame, train, columns, codes),
        to_examples(dev_frame, dev, replace(columns, owner=""), codes),
    )


def _tags(info: TaskInfo, train: Path, dev: Path, columns: Columns) -> Task:
    """Return a task of tagged words.

    With a tag "O" for words outside, it is about entities, and the metric is their F1.
    """
    if columns.text_pair:
        raise UserError(
            f"task.text_pair = '{columns.text_pair}': tags have one text, not two; leave it out"
        )
    train_frame, dev_frame = read_tagged_table(train), read_tagged_table(dev)
    check_columns(train_frame, train, columns)
    tags = tags_of(train_frame, train, columns.label)
    labels = sort_labels(tag for row in tags for tag in row)
    labels = tuple(sorted(labels, key=lambda label: label != "O"))  # "O" first, the order kept
    _need_two(labels, train, columns.label)
    codes = {label: index for index, label in enumerate(labels)}
    metric = "f1" if "O" in codes else "accuracy"
    return Task(
        replace(info, kind="tags", labels=labels, metric=metric),
        to_tagged_examples(train_frame, train, columns, codes),
        to_tagged_examples(dev_frame, dev, replace(columns, owner=""), codes),
    )


def _need_two(labels: tuple[str, ...], path: Path, column: str) -> None:
    if len(labels) < 2:
        raise UserError(f"{path}: column '{column}' has one label; expected two or more")


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
