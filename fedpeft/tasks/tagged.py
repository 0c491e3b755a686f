"""Read table files whose rows have a list of words and a list of tags.

As in readers, errors name file and row and never quote a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.experiment.names import label_text
from fedpeft.tasks.base import Examples, tag_column
from fedpeft.tasks.readers import Columns, cells, check_columns, label_texts, read_table
from fedpeft.tasks.table import Table


def read_tagged_table(path: Path, wanted: Collection[str] | None = None) -> Table:
    """Read a table file in a format that supports lists.

    Raises:
        UserError: neither .jsonl nor .parquet, or ``readers.read_table`` refuses it.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(
            f"{path}: tags need lists of words, which only .jsonl and .parquet files have"
        )
    return read_table(path, wanted)


def tags_of(table: Table, path: Path, column: str, labels: Sequence[str] = ()) -> list[list[str]]:
    """Return the tags of every row by name.

    The name of an integer is that of the file's ClassLabel, otherwise the label at its place;
    without labels, or if these are numbers, the integer itself.

    Args:
        table: has the column.
        path: named in errors.
        column: of lists of tags.
        labels: names of all tags by index; empty = not known, and integers are names.

    Raises:
        UserError: a cell is not a list, a tag is empty or neither text nor an integer, or an
            integer has no name.
    """
    known = table.class_names.get(column, ())
    numbers = any(label.isdecimal() for label in labels)  # the labels are integers themselves
    named = known or (() if numbers else labels)
    rows = []
    for number, values in _lists(table, path, column):
        for value in values:
            empty = not str(value).strip()
            if not isinstance(value, str | int) or isinstance(value, bool) or empty:
                kind = "empty" if empty else type(value).__name__
                raise UserError(
                    f"{path} row {number}: a tag in column '{column}' is {kind}, expected its name"
                )
            if named and isinstance(value, int) and not 0 <= value < len(named):
                source = "the file's ClassLabel" if known else "task.labels"
                raise UserError(
                    f"{path} row {number}: a tag in column '{column}' is {value}, without a name: "
                    f"{source} has {len(named)}, from 0 on"
                )
        rows.append(
            [
                named[value] if named and isinstance(value, int) else label_text(value)
                for value in values
            ]
        )
    return rows


def to_tagged_examples(
    table: Table, path: Path, columns: Columns, codes: Mapping[str, int]
) -> Examples:
    """Convert a table to examples with tagged words.

    Args:
        table: has these columns.
        path: named in errors.
        columns: names of the columns.
        codes: class index by tag.

    Raises:
        UserError: a column is missing, a cell is not a list or is empty, words and tags differ in
            number, or a tag is unknown.
    """
    check_columns(table, path, columns)
    text, labels = [], []
    tags = tags_of(table, path, columns.label, [*codes])
    for (number, words), names in zip(_lists(table, path, columns.text), tags, strict=True):
        where = f"{path} row {number}"
        if not all(isinstance(word, str) for word in words):
            raise UserError(f"{where}: column '{columns.text}' holds what is no text")
        if len(words) != len(names):
            raise UserError(f"{where}: {len(words)} words but {len(names)} tags")
        text.append(words)
        # Quote it only if it looks like a tag: with swapped columns it is a word.
        unknown = [place for place, name in enumerate(names, start=1) if name not in codes]
        if unknown:
            name = names[unknown[0] - 1]
            quoted = f" = '{name}'" if re.fullmatch(r"[BIES]-\w{1,20}", name) else ""
            raise UserError(
                f"{where}: tag {unknown[0]}{quoted} is none of the {len(codes)} in training"
            )
        labels.append([codes[name] for name in names])
    owners = label_texts(table, path, columns.owner) if columns.owner else None
    return Examples(text, None, tag_column(labels), owners)


def _lists(table: Table, path: Path, column: str) -> list[tuple[int, list[Any]]]:
    """Return (row number in the file from 1, values) of a column of non-empty lists."""
    result = []
    for number, values in cells(table, path, column):
        if not isinstance(values, list):
            kind = type(values).__name__
            raise UserError(f"{path} row {number}: column '{column}' is {kind}, expected a list")
        if not values:
            raise UserError(f"{path} row {number}: column '{column}' is an empty list")
        result.append((number, values))
    return result
