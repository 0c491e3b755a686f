"""Task "custom": table files of the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.tasks.base import Task, TaskInfo
from fedpeft.tasks.readers import (
    Columns,
    check_columns,
    label_texts,
    read_table,
    to_examples,
    to_text_examples,
)
from fedpeft.tasks.splits import DEV, source_of
from fedpeft.tasks.table import Table
from fedpeft.tasks.tagged import read_tagged_table, tags_of, to_tagged_examples

TASKS = (
    TaskInfo(
        "custom", "classes", (), False, "accuracy", None, "your own files (task.train, task.dev)"
    ),
)

_Named = tuple[Table, Path]  # a table, and its name for messages


def described(info: TaskInfo, section: TaskSection) -> TaskInfo | None:
    """Return the task's description from the settings alone; None if they lack the labels."""
    if section.kind not in ("score", "text") and not section.labels:
        return None
    return _info(info, section, section.labels)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Load ``section.train`` and ``section.dev``: files, or data sets that ``datasets`` reads.

    Paths are relative to ``section.path``.

    The classes are ``section.labels``, by default those in the training file: numbers in numeric
    order, text in alphabetical order; tag "O" is first. Other labels in a file are refused. Without
    a dev file, a share ``section.held_out`` of the training file's rows, which depends on the seed,
    is used for evaluation. Tasks of text have no classes.

    Raises:
        UserError: a file is not named, missing, or invalid.
    """
    if not section.train:
        raise UserError(
            "task.train is empty: task 'custom' needs a file (.tsv, .csv, ...) or a data set of "
            "the hub; where only the nodes have data, set federation.evaluation = 'clients', and "
            "task.labels for classes"
        )
    if section.kind == "text":
        return _load_text(info, section, seed, owner_column)
    named = _settings(section, owner_column, "text", "label", "text_pair")
    columns = Columns(section.text, section.label, section.text_pair, owner_column, named)
    if section.kind == "tags" and section.text_pair:
        raise UserError(
            f"task.text_pair = '{columns.text_pair}': tags have one text, not two; leave it out"
        )
    read = read_tagged_table if section.kind == "tags" else read_table
    (table, train), evaluated = _tables(section, columns.names, read)
    check_columns(table, train, columns)
    labels = section.labels or _labels_in(table, train, section)
    kept, held_out, dev = _divided(table, train, evaluated, section, seed)
    codes = None if section.kind == "score" else {name: at for at, name in enumerate(labels)}
    dev_columns = replace(columns, owner="")
    convert: Any = to_tagged_examples if section.kind == "tags" else to_examples
    return Task(
        _info(info, section, labels),
        convert(kept, train, columns, codes),
        convert(held_out, dev, dev_columns, codes),
    )


def _load_text(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Load texts and the texts to write for them."""
    named = _settings(section, owner_column, "source", "target")
    columns = Columns(section.source, section.target, owner=owner_column, settings=named)
    (table, train), evaluated = _tables(section, columns.names, read_table)
    check_columns(table, train, columns)
    kept, held_out, dev = _divided(table, train, evaluated, section, seed)
    return Task(
        _info(info, section, ()),
        to_text_examples(kept, train, columns),
        to_text_examples(held_out, dev, replace(columns, owner="")),
    )


def _settings(section: TaskSection, owner_column: str, *keys: str) -> dict[str, str]:
    """Return the setting that names each column."""
    named = {getattr(section, key): f"task.{key}" for key in keys}
    return {owner_column: "partition.column"} | named


def files(info: TaskInfo, section: TaskSection) -> list[Path]:
    """Return the local files and folders of the training and the evaluation examples.

    Raises:
        UserError: one of them is not named, or is no file.
    """
    found = []
    for key in ("train", *(["dev"] if section.dev else [])):
        source = source_of(f"task.{key}", getattr(section, key), section.path)
        found.append(Path(source.name) if source else _file(section, key))
    return [path for path in found if path.exists()]


def _tables(
    section: TaskSection, names: Collection[str], read: Callable[[Path, Collection[str]], Table]
) -> tuple[_Named, _Named | None]:
    """Return the tables to train on and to evaluate on, with their names for messages.

    The latter is None if it is to be held out from the former. A data set without ``section.dev``
    has its own split for it.

    Raises:
        UserError: a file or a data set cannot be read.
    """

    def table(key: str, *splits: str) -> _Named:
        source = source_of(f"task.{key}", getattr(section, key), section.path)
        if source is None:
            path = _file(section, key)
            return read(path, names), path
        found = source.table(names, splits)
        if found is None:
            raise UserError(
                f"task.{key} = '{source}': no split '{splits[0]}'; name one, as in '{source}:SPLIT'"
            )
        return found

    train = table("train", "train")
    if section.dev:
        return train, table("dev", *DEV, "test")
    source = source_of("task.train", section.train, section.path)
    named = source and source.split
    return train, source.table(names, DEV) if source and not named else None


def _divided(
    table: Table, train: Path, evaluated: _Named | None, section: TaskSection, seed: int
) -> tuple[Table, Table, Path]:
    """Return the rows to train on and to evaluate on, and the name of the latter's table."""
    return (table, *evaluated) if evaluated else (*_split(table, train, section, seed), train)


def _file(section: TaskSection, key: str) -> Path:
    name = getattr(section, key)
    path = Path(section.path) / name
    if path.is_file():
        return path
    base = (
        f"task.path = '{section.path}'" if section.path else f"the current folder, '{Path.cwd()}'"
    )
    where = "" if Path(name).is_absolute() else f"; the path is relative to {base}"
    raise UserError(f"task.{key} = '{name}': no such file{where}")


def _info(info: TaskInfo, section: TaskSection, labels: tuple[str, ...]) -> TaskInfo:
    """Return the task's description; tags with "O" are scored as entities."""
    metric = "pearson" if section.kind == "score" else "accuracy"
    if section.kind == "text":
        return replace(info, kind="text", metric=section.metric or metric)
    if section.kind == "tags" and "O" in labels:
        metric = "f1"
    pair = bool(section.text_pair)
    return replace(info, kind=section.kind, labels=labels, pair=pair, metric=metric)


def _labels_in(table: Table, path: Path, section: TaskSection) -> tuple[str, ...]:
    """Return the labels of the training file; () for a score."""
    if section.kind == "score":
        return ()
    if section.kind == "classes":
        labels = sort_labels(label_texts(table, path, section.label))
    elif section.label in table.class_names:
        labels = table.class_names[section.label]
    else:
        tags = tags_of(table, path, section.label)
        labels = sort_labels(tag for row in tags for tag in row)
        labels = tuple(sorted(labels, key=lambda label: label != "O"))  # stable: "O" first
    if len(labels) < 2:
        raise UserError(f"{path}: column '{section.label}' has one label; expected two or more")
    return labels


def _split(table: Table, path: Path, section: TaskSection, seed: int) -> tuple[Table, Table]:
    """Split into rows to train on and rows held out, both in the order of the file."""
    count = max(1, round(section.held_out * len(table)))
    if count >= len(table):
        raise UserError(
            f"{path}: has {len(table)} rows; expected at least 2, to hold some out for evaluation "
            f"(or name a file with task.dev)"
        )
    chosen = generator(seed, "held-out").choice(len(table), count, replace=False)
    held_out = np.isin(np.arange(len(table)), chosen)
    return table.select(np.flatnonzero(~held_out)), table.select(np.flatnonzero(held_out))


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted by value if all are numbers, otherwise as text."""
    distinct = sorted(set(labels))
    try:
        values = {label: float(label) for label in distinct}
    except ValueError:
        return tuple(distinct)
    if not all(math.isfinite(value) for value in values.values()):  # "nan" is a word here
        return tuple(distinct)
    return tuple(sorted(distinct, key=values.__getitem__))
