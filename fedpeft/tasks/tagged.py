"""Table files whose rows hold a list of words and a list of their tags.

As in readers, errors name file and row and never quote a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples, tag_column
from fedpeft.tasks.readers import Columns, cells, check_columns, label_texts, read_table

if TYPE_CHECKING:
    import pandas as pd


def read_tagged_table(path: Path) -> pd.DataFrame:
    """Return a table file as a frame; only these formats can hold lists.

    Raises:
        UserError: neither .jsonl nor .parquet, or ``readers.read_table`` refuses it.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(
            f"{path}: tags need lists of words, which only .jsonl and .parquet files have"
        )
    return read_table(path)


def tags_of(frame: pd.DataFrame, path: Path, column: str) -> list[list[str]]:
    """Return the tags of every row as text; numbers may stand for names.

    Raises:
        UserError: no such list, or a tag is empty or neither text nor a whole number.
    """
    rows = []
    for number, values in _lists(frame, path, column):
        for value in values:
            if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
                kind = "empty" if value == "" else type(value).__name__
                raise UserError(
                    f"{path} row {number}: a tag in column '{column}' is {kind}, expected its name"
                )
        rows.append([str(value) for value in values])
    return rows


def to_tagged_examples(
    frame: pd.DataFrame, path: Path, columns: Columns, codes: Mapping[str, int]
) -> Examples:
    """Return the columns of a frame as tagged words.

    Args:
        frame: its index holds the row numbers in the file, from 0.
        path: named in errors.
        columns: names of the columns.
        codes: class index of every tag.

    Raises:
        UserError: a column is missing, a cell is no list of words or tags or an empty one, there
            are not as many tags as words, or a tag is none of the classes.
    """
    check_columns(frame, path, columns)
    text, labels = [], []
    tags = tags_of(frame, path, columns.label)
    for (number, words), names in zip(_lists(frame, path, columns.text), tags, strict=True):
        where = f"{path} row {number}"
        if not all(isinstance(word, str) for word in words):
            raise UserError(f"{where}: column '{columns.text}' holds what is no text")
        if len(words) != len(names):
            raise UserError(f"{where}: {len(words)} words but {len(names)} tags")
        text.append(words)
        # Quoted only if it looks like a tag: swapped columns would show words.
        unknown = [place for place, name in enumerate(names, start=1) if name not in codes]
        if unknown:
            name = names[unknown[0] - 1]
            said = f" = '{name}'" if re.fullmatch(r"[BIES]-\w{1,20}", name) else ""
            raise UserError(
                f"{where}: tag {unknown[0]}{said} is none of the {len(codes)} in training"
            )
        labels.append([codes[name] for name in names])
    owners = label_texts(frame, path, columns.owner) if columns.owner else None
    return Examples(text, None, tag_column(labels), owners)


def _lists(frame: pd.DataFrame, path: Path, column: str) -> list[tuple[int, list[Any]]]:
    """Return (row number in the file from 1, values) of a column of lists, none of them empty."""
    result = []
    for number, value in cells(frame, path, column):
        values = value.tolist() if isinstance(value, np.ndarray) else value  # Parquet has arrays
        if not isinstance(values, list):
            kind = type(values).__name__
            raise UserError(f"{path} row {number}: column '{column}' is {kind}, expected a list")
        if not values:
            raise UserError(f"{path} row {number}: column '{column}' is an empty list")
        result.append((number, values))
    return result
