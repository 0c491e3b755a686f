"""Table files, and what a column must hold to be a text, a label or an owner.

Errors name file and row (data rows are counted from 1) and never quote a text: it may be private,
and messages travel. Values that have to be shown are cut short.
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
    """Names of the columns to read; ``text_pair`` and ``owner`` are empty where there is none."""

    text: str
    label: str
    text_pair: str = ""
    owner: str = ""


def read_table(path: Path) -> pd.DataFrame:
    """Return a table file as a frame with at least one row.

    ``.tsv`` has a header and no quoting, as GLUE's files; ``.csv`` has a header and the usual
    quoting; both give text only, and "NA" or "null" stay text. ``.jsonl`` and ``.parquet`` keep
    their values.

    Raises:
        UserError: no such file, another extension, or a content that is not such a table.
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
    """Return the columns of a frame as examples.

    Args:
        frame: its index holds the row numbers in the file, from 0.
        path: named in errors.
        columns: names of the columns.
        codes: class index of every label as it may stand in the file; None for scores.

    Raises:
        UserError: a column is missing, a text is empty, a label is none of the classes, a score
            is not a finite number.
    """
    check_columns(frame, path, columns)
    return Examples(
        _texts(frame, path, columns.text),
        _texts(frame, path, columns.text_pair) if columns.text_pair else None,
        _scores(frame, path, columns.label)
        if codes is None
        else _classes(frame, path, columns.label, codes),
        _owners(frame, path, columns.owner) if columns.owner else None,
    )


def check_columns(frame: pd.DataFrame, path: Path, columns: Columns) -> None:
    """Raise UserError unless the frame has all the columns."""
    present = [shorten(name) for name in frame.columns]
    for name in (columns.text, columns.text_pair, columns.label, columns.owner):
        if name and name not in frame.columns:
            raise UserError(f"{path}: no column '{name}'{nearest(name, present)}")


def label_texts(frame: pd.DataFrame, path: Path, column: str) -> list[str]:
    """Return the labels as text, so that 1, 1.0, "1" and "1.0" are one label in any format.

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
    """Return the class index of a label; ``where`` begins the error if it has none."""
    if label not in codes:
        valid = ", ".join(shorten(name) for name in list(codes)[:10])
        more = f" and {len(codes) - 10} more" if len(codes) > 10 else ""
        raise UserError(f"{where} = '{shorten(label)}' is none of the labels; valid: {valid}{more}")
    return codes[label]


def cells(frame: pd.DataFrame, path: Path, column: str) -> Iterable[tuple[int, Any]]:
    """Yield (row number in the file from 1, value); a missing value is refused."""
    missing = frame[column].isna().tolist()
    numbers = (frame.index + 1).tolist()
    for number, value, absent in zip(numbers, frame[column].tolist(), missing, strict=True):
        if absent:
            raise UserError(f"{path} row {number}: column '{column}' is empty")
        yield number, value


def shorten(value: object, limit: int = 30) -> str:
    """Return a value for an error: one line, cut to ``limit`` characters."""
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
            skip_blank_lines=False,  # a row less would shift all that follow
        )
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: is empty; expected a header and rows") from None
    except pd.errors.ParserError as error:
        # pandas says "Expected 2 fields in line 3, saw 4", or that a quote is not closed
        found = re.search(r"Expected \d+ fields in line \d+, saw \d+", str(error))
        reason = found[0].replace("Expected", "expected") if found else "check its quotes"
        raise UserError(f"{path}: not a table: {reason}") from None
    if not isinstance(frame.index, pd.RangeIndex):  # surplus columns would become the index
        raise UserError(f"{path}: the rows have more fields than the header")
    blank = frame.fillna("").eq("").all(axis=1)
    last = int((~blank).to_numpy().nonzero()[0].max(initial=-1))
    return frame.iloc[: last + 1]  # blank lines at the end of a file are no rows


def _read_jsonl(path: Path) -> pd.DataFrame:
    import pandas as pd

    records: list[dict[str, Any]] = []
    # Not split by splitlines(): a text may hold characters it takes for the end of a line.
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
    return pd.DataFrame(records, dtype=object)  # object: no number is turned into another kind


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
    found = [
        code_of(text, codes, f"{path} row {number}: {column}")
        for number, text in zip(frame.index + 1, texts, strict=True)
    ]
    return np.array(found, dtype=np.int64)


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


def _owners(frame: pd.DataFrame, path: Path, column: str) -> list[str]:
    return label_texts(frame, path, column)
