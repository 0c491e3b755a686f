"""Read table files and validate their columns of texts, labels and owners.

Errors name file and row (data rows are counted from 1). They never quote a text, which may be
private, and they shorten other values.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.errors import UserError, nearest
from fedpeft.tasks.base import Examples

if TYPE_CHECKING:
    import pandas as pd

EXTENSIONS = (".tsv", ".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; "" = no such column."""

    text: str
    label: str
    text_pair: str = ""
    owner: str = ""


def read_table(path: Path) -> pd.DataFrame:
    """Read a table file with at least one row.

    ``.tsv`` has a header and no quoting, as GLUE's files do; ``.csv`` has a header and the usual
    quoting. Values of both are text, also "NA" and "null". ``.jsonl`` and ``.parquet`` keep their
    types.

    Raises:
        UserError: no such file, an unknown extension, or not a valid table.
    """
    readers = {
        ".tsv": _read_delimited,
        ".csv": _read_delimited,
        ".jsonl": _read_jsonl,
        ".parquet": _read_parquet,
    }
    if path.suffix not in readers:
        raise UserError(f"{path}: unknown kind of file; valid: {', '.join(EXTENSIONS)}")
    if not path.is_file():
        raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        frame = readers[path.suffix](path)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not len(frame):
        raise UserError(f"{path}: has no rows")
    return frame


def to_examples(
    frame: pd.DataFrame, path: Path, columns: Columns, codes: Mapping[str, int] | None
) -> Examples:
    """Convert a frame to examples.

    Args:
        frame: its index is the row number in the file, from 0.
        path: named in errors.
        columns: names of the columns.
        codes: class index by label as written in the file; None for scores.

    Raises:
        UserError: a column is missing, a text is empty, a label is unknown, a score is not a finite
            number.
    """
    check_columns(frame, path, columns)
    return Examples(
        _texts(frame, path, columns.text),
        _texts(frame, path, columns.text_pair) if columns.text_pair else None,
        _scores(frame, path, columns.label)
        if codes is None
        else _classes(frame, path, columns.label, codes),
        label_texts(frame, path, columns.owner) if columns.owner else None,
    )


def to_text_examples(frame: pd.DataFrame, path: Path, columns: Columns) -> Examples:
    """Convert a frame to texts and the texts to write; ``columns.label`` names the latter.

    Raises:
        UserError: a column is missing, or a text is empty.
    """
    check_columns(frame, path, columns)
    return Examples(
        _texts(frame, path, columns.text),
        None,
        np.zeros(len(frame), np.int64),
        label_texts(frame, path, columns.owner) if columns.owner else None,
        _texts(frame, path, columns.label),
    )


def check_columns(frame: pd.DataFrame, path: Path, columns: Columns) -> None:
    """Raise UserError if a column is missing."""
    present = [shorten(name) for name in frame.columns]
    for name in (columns.text, columns.text_pair, columns.label, columns.owner):
        if name and name not in frame.columns:
            raise UserError(f"{path}: no column '{name}'{nearest(name, present)}")


def label_texts(frame: pd.DataFrame, path: Path, column: str) -> list[str]:
    """Return the labels as text; 1, 1.0, "1" and "1.0" are the same label.

    Raises:
        UserError: a label is missing.
    """
    whole = re.compile(r"[+-]?\d+\.0+")
    result = []
    for number, value in cells(frame, path, column):
        text = str(value).strip()
        if not text:
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        result.append(text.partition(".")[0] if whole.fullmatch(text) else text)
    return result


def code_of(label: str, codes: Mapping[str, int], where: str) -> int:
    """Return the class index of a label; the error for an unknown label begins with ``where``."""
    if label not in codes:
        valid = ", ".join(shorten(name) for name in list(codes)[:10])
        more = f" and {len(codes) - 10} more" if len(codes) > 10 else ""
        raise UserError(f"{where} = '{shorten(label)}' is none of the labels; valid: {valid}{more}")
    return codes[label]


def cells(frame: pd.DataFrame, path: Path, column: str) -> Iterable[tuple[int, Any]]:
    """Yield (row number in the file from 1, value); refuse missing values."""
    missing = frame[column].isna().tolist()
    numbers = (frame.index + 1).tolist()
    for number, value, absent in zip(numbers, frame[column].tolist(), missing, strict=True):
        if absent:
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        yield number, value


def shorten(value: object, limit: int = 30) -> str:
    """Return a value as one line of at most ``limit`` characters, for an error."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _read_delimited(path: Path) -> pd.DataFrame:
    import pandas as pd

    tabs = path.suffix == ".tsv"
    try:
        frame = pd.read_csv(
            path,
            sep="\t" if tabs else ",",
            quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
            dtype=str,
            na_filter=False,
            encoding="utf-8",
            skip_blank_lines=False,  # skipping would shift the row numbers
        )
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: is empty; expected a header and rows") from None
    except pd.errors.ParserError as error:
        # "Expected 2 fields in line 3, saw 4", or an unclosed quote
        fields = re.search(r"Expected \d+ fields in line \d+, saw \d+", str(error))
        reason = fields[0].replace("Expected", "expected") if fields else "check its quotes"
        raise UserError(f"{path}: not a table: {reason}") from None
    if not isinstance(frame.index, pd.RangeIndex):  # surplus columns would become the index
        raise UserError(f"{path}: the rows have more fields than the header")
    blank = frame.fillna("").eq("").all(axis=1)
    last = int((~blank).to_numpy().nonzero()[0].max(initial=-1))
    return frame.iloc[: last + 1]  # drop blank lines at the end of the file


def _read_jsonl(path: Path) -> pd.DataFrame:
    import pandas as pd

    records: list[dict[str, Any]] = []
    # Not splitlines(): a text may contain characters that it treats as line ends.
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise UserError(f"{path} row {len(records) + 1}: not a JSON object on one line")
            records.append(record)
    return pd.DataFrame(records, dtype=object)  # object: keeps the types of numbers


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path).reset_index(drop=True)
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors
        raise UserError(f"{path}: cannot be read as Parquet") from None


def _texts(frame: pd.DataFrame, path: Path, column: str) -> list[str]:
    result = []
    for number, value in cells(frame, path, column):
        if not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(f"{path} row {number}: column '{column}' is {kind}, expected text")
        if not value.strip():
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        result.append(value)
    return result


def _classes(frame: pd.DataFrame, path: Path, column: str, codes: Mapping[str, int]) -> np.ndarray:
    texts = label_texts(frame, path, column)
    indices = [
        code_of(text, codes, f"{path} row {number}: {column}")
        for number, text in zip(frame.index + 1, texts, strict=True)
    ]
    return np.array(indices, dtype=np.int64)


def _scores(frame: pd.DataFrame, path: Path, column: str) -> np.ndarray:
    result = []
    for number, value in cells(frame, path, column):
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
