"""Read table files and validate their columns of texts, labels and owners.

Errors name file and row (data rows are counted from 1). They never quote a text, which may be
private, and they shorten other values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError, is_unicode, nearest, printable
from fedpeft.experiment.names import label_text
from fedpeft.tasks.base import Examples
from fedpeft.tasks.formats import READERS
from fedpeft.tasks.table import Table

EXTENSIONS = tuple(READERS)


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; "" = no such column.

    Attributes:
        text: column of the texts.
        label: column of the labels.
        text_pair: column of the second texts.
        owner: column of the owners.
        settings: the setting that names each column, if one does.
    """

    text: str
    label: str
    text_pair: str = ""
    owner: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [name for name in (self.text, self.text_pair, self.label, self.owner) if name]


def read_table(path: Path, wanted: Collection[str] | None = None) -> Table:
    """Read a table file with at least one row.

    ``.tsv`` has a header and no quoting, as GLUE's files do; ``.csv`` has a header and the usual
    quoting. Values of both are text, also "NA" and "null". ``.jsonl`` and ``.parquet`` keep their
    types.

    Args:
        path: of the file.
        wanted: names of the columns to keep, if the file has them; None = all.

    Raises:
        UserError: no such file, an unknown extension, or not a valid table.
    """
    if path.suffix not in READERS:
        raise UserError(f"{path}: unknown kind of file; valid: {', '.join(EXTENSIONS)}")
    if not path.is_file():
        raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        table = READERS[path.suffix](path, wanted)
    except UnicodeDecodeError:
        raise UserError(f"{path} {_undecodable(path)}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not len(table):
        raise UserError(f"{path}: has no rows")
    return table


def only_file(folder: Path, stem: str) -> Path | None:
    """Return the table file with a stem in a folder; None if there is none.

    Raises:
        UserError: there are several, of which one would be read and the others ignored.
    """
    files = [path for end in EXTENSIONS if (path := folder / f"{stem}{end}").is_file()]
    if len(files) > 1:
        names = " and ".join(path.name for path in files)
        raise UserError(f"'{folder}': holds {names}; expected one of them, remove the others")
    return files[0] if files else None


def _undecodable(path: Path) -> str:
    """Return the first line of a file that is not UTF-8, as text."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number}"
    return ""


def to_examples(
    table: Table, path: Path, columns: Columns, codes: Mapping[str, int] | None
) -> Examples:
    """Convert a table to examples.

    Args:
        table: has these columns.
        path: named in errors.
        columns: names of the columns.
        codes: class index by label as written in the file; None for scores.

    Raises:
        UserError: a column is missing, a text is empty, a label is unknown, a score is not a finite
            number.
    """
    check_columns(table, path, columns)
    return Examples(
        texts_of(table, path, columns.text),
        texts_of(table, path, columns.text_pair) if columns.text_pair else None,
        _scores(table, path, columns.label)
        if codes is None
        else _classes(table, path, columns.label, codes),
        label_texts(table, path, columns.owner) if columns.owner else None,
    )


def to_text_examples(table: Table, path: Path, columns: Columns) -> Examples:
    """Convert a table to texts and the texts to write; ``columns.label`` names the latter.

    Raises:
        UserError: a column is missing, or a text is empty.
    """
    check_columns(table, path, columns)
    return Examples(
        texts_of(table, path, columns.text),
        None,
        np.zeros(len(table), np.int64),
        label_texts(table, path, columns.owner) if columns.owner else None,
        texts_of(table, path, columns.label),
    )


def check_columns(table: Table, path: Path, columns: Columns) -> None:
    """Raise UserError if a column is missing."""
    present = [shorten(name) for name in table.names]
    for name in columns.names:
        if name not in table.names:
            setting = columns.settings.get(name)
            other = f" ({setting} = '...' names another column)" if setting else ""
            raise UserError(f"{path}: no column '{name}'{nearest(name, present)}{other}")


def first_present(table: Table, candidates: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the first possible names of the text columns that the table has; None = it has none.

    Args:
        table: the table.
        candidates: names of the columns of the first and the second text; "" = no second text.
    """
    return next((names for names in candidates if {*names} - {""} <= {*table.names}), None)


def texts_of(table: Table, path: Path, column: str) -> list[str]:
    """Return the texts of a column; raise UserError if one is missing or empty."""
    result = []
    for number, value in cells(table, path, column):
        if not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(f"{path} row {number}: column '{column}' is {kind}, expected text")
        if not value.strip():
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        result.append(value)
    return result


def label_texts(table: Table, path: Path, column: str) -> list[str]:
    """Return the labels or owners of a column as text, see ``label_text``.

    Raises:
        UserError: one is missing, or is a list, an object or bytes.
    """
    result = []
    for number, value in cells(table, path, column):
        if isinstance(value, Collection) and not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(
                f"{path} row {number}: column '{column}' is {kind}, expected text or a number"
            )
        if not (text := label_text(value)):
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        result.append(text)
    return result


def code_of(label: str, codes: Mapping[str, int], where: str) -> int:
    """Return the class index of a label; the error for an unknown label begins with ``where``."""
    if label not in codes:
        valid = ", ".join(shorten(name) for name in list(codes)[:10])
        more = f" and {len(codes) - 10} more" if len(codes) > 10 else ""
        raise UserError(f"{where} = '{shorten(label)}' is none of the labels; valid: {valid}{more}")
    return codes[label]


def cells(table: Table, path: Path, column: str) -> Iterable[tuple[int, Any]]:
    """Yield (row number in the file from 1, value).

    Raises:
        UserError: a value is missing, or a text, also one in a list, is not valid Unicode, which no
            tokenizer and no file takes.
    """
    for number, value in zip(table.numbers, table.columns[column], strict=True):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        texts = value if isinstance(value, list) else [value]
        if not all(is_unicode(text) for text in texts if isinstance(text, str)):
            raise UserError(
                f"{path} row {number}: column '{column}' is not valid Unicode (half of a surrogate "
                f"pair, such as \\ud83d alone); correct or remove the row"
            )
        yield number, value


def shorten(value: object, limit: int = 30) -> str:
    """Return a value as one line of at most ``limit`` characters, for an error."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _classes(table: Table, path: Path, column: str, codes: Mapping[str, int]) -> np.ndarray:
    texts = label_texts(table, path, column)
    indices = [
        code_of(text, codes, f"{path} row {number}: {column}")
        for number, text in zip(table.numbers, texts, strict=True)
    ]
    return np.array(indices, dtype=np.int64)


def _scores(table: Table, path: Path, column: str) -> np.ndarray:
    result = []
    for number, value in cells(table, path, column):
        try:
            score = float(value)
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise UserError(
                f"{path} row {number}: {column} = '{shorten(value)}', expected a finite number"
            )
        result.append(score)
    return np.array(result, dtype=np.float64)
