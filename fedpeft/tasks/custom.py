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

TASKS = (
    TaskInfo(
        "custom", "classes", (), False, "accuracy", None, "your own files (task.train, task.dev)"
    ),
)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Return the task of ``section.train`` and ``section.dev``, relative to ``section.path``.

    The classes are those found in the training file: numbers in numeric order, else text in
    alphabetical order. A label of the dev file that is not among them is refused.

    Raises:
        UserError: a file is not named, not there, or not right.
    """
    for key, value in (("train", section.train), ("dev", section.dev)):
        if not value:
            raise UserError(f"task.{key} is empty: task 'custom' needs a file (.tsv, .csv, ...)")
    train, dev = (Path(section.path) / file for file in (section.train, section.dev))
    columns = Columns(section.text, section.label, section.text_pair, owner_column)
    train_frame, dev_frame = read_table(train), read_table(dev)
    labels: tuple[str, ...] = ()
    codes = None
    if section.kind == "classes":
        check_columns(train_frame, train, columns)
        labels = sort_labels(label_texts(train_frame, train, section.label))
        if len(labels) < 2:
            raise UserError(
                f"{train}: column '{section.label}' has one label; expected two or more"
            )
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
