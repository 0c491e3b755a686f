"""Table files by format: tab- or comma-separated values, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.files import USERS_TEXT
from fedpeft.tasks.table import Table

_Wanted = Collection[str] | None  # names of the columns to keep; None = all
_SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas"}


def _kept(path: Path, names: Sequence[str], wanted: _Wanted) -> list[str]:
    """Return the names to keep.

    Raises:
        UserError: two columns have one of these names.
    """
    kept = [name for name in names if wanted is None or name in wanted]
    for name in kept:
        if names.count(name) > 1:
            raise UserError(f"{path}: two columns have the name '{name}'")
    return kept


def _read_delimited(path: Path, wanted: _Wanted) -> Table:
    rows = _rows(path)
    names = next(rows, None)
    if names is None:
        raise UserError(f"{path}: is empty; expected a header and rows")
    names = [name if name in (wanted or ()) else name.strip() for name in names]  # "text, label"
    _check_separator(path, names, wanted)
    places = {name: names.index(name) for name in _kept(path, names, wanted)}
    columns: dict[str, list[str]] = {name: [] for name in places}
    count = 0  # rows without the blank lines at the end
    for number, fields in enumerate(rows, start=1):
        if len(fields) > len(names):
            if number == 1:
                raise UserError(f"{path}: the rows have more fields than the header")
            reason = f"expected {len(names)} fields in row {number}, saw {len(fields)}"
            raise UserError(f"{path}: not a table: {reason}")
        for name, place in places.items():
            columns[name].append(fields[place] if place < len(fields) else "")
        count = number if any(fields) else count
    filled = {name: column[:count] for name, column in columns.items()}
    return Table(tuple(names), filled, range(1, count + 1))


def _check_separator(path: Path, names: Sequence[str], wanted: _Wanted) -> None:
    """Raise UserError if the header is one name with the separators of another kind of file."""
    expected = "\t" if path.suffix == ".tsv" else ","
    if len(names) == 1 and names[0] not in (wanted or ()):
        for other, kind in _SEPARATORS.items():
            if other != expected and other in names[0]:
                raise UserError(
                    f"{path}: its header has {kind}; expected {_SEPARATORS[expected]} between the "
                    f"columns of a {path.suffix} file"
                )


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the fields of every row, the header first."""
    tabs = path.suffix == ".tsv"
    number = 0  # of rows before this one
    with open(path, encoding=USERS_TEXT, newline=None if tabs else _row_end(path)) as file:
        # str.split: csv would limit the length of a field
        lines = (line.removesuffix("\n").split("\t") for line in file)
        try:
            for fields in lines if tabs else csv.reader(file, strict=True):
                yield fields
                number += 1
        except csv.Error as error:  # or a field is longer than csv.field_size_limit()
            place = f"row {number}" if number else "the header"
            reason = f"{error} in {place}; check its quotes or save it as .jsonl"
            raise UserError(f"{path}: not a table: {reason}") from None


def _row_end(path: Path) -> str:
    """Return the ends of rows of a .csv file for ``open``, any ("") only where the header's is.

    After a header that ends with a line feed, csv refuses a carriage return alone outside of
    quotes: it is in a text that the file does not quote, not at the end of a row.
    """
    with open(path, "rb") as file:
        return "\n" if file.readline().endswith(b"\n") else ""


def _read_jsonl(path: Path, wanted: _Wanted) -> Table:
    names: dict[str, None] = {}
    records: list[dict[str, Any]] = []
    # Not splitlines(): a text may contain characters that it treats as line ends.
    with open(path, encoding=USERS_TEXT) as file:
        for line in file:
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=_object)
            except (ValueError, RecursionError):  # also an integer of too many digits
                record = None
            if not isinstance(record, dict):
                raise UserError(
                    f"{path} row {len(records) + 1}: expected a JSON object on one line, with each "
                    f"name once"
                )
            names.update(dict.fromkeys(record))
            records.append({n: v for n, v in record.items() if wanted is None or n in wanted})
    kept = _kept(path, [*names], wanted)
    columns = {name: [record.get(name) for record in records] for name in kept}
    return Table(tuple(names), columns, range(1, len(records) + 1))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: it has a name twice, of which ``json`` would keep the last.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _read_parquet(path: Path, wanted: _Wanted) -> Table:
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            # pandas stores the names of the rows as further columns
            index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
            names = [name for name in file.schema_arrow.names if name not in index]
            content = file.read(_kept(path, names, wanted))
            pairs = zip(content.column_names, content.columns, strict=True)
            columns = {name: values.to_pylist() for name, values in pairs}
            numbers = range(1, file.metadata.num_rows + 1)
            return Table(tuple(names), columns, numbers, _class_names(file.schema_arrow.metadata))
    except (OSError, ValueError, OverflowError, ArrowException):  # dates may overflow
        raise UserError(f"{path}: cannot be read as Parquet") from None


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Return the names of integers by column, from the schema that ``datasets`` stores."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        named = {column: _names_in(feature) for column, feature in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {column: names for column, names in named.items() if names}


def _names_in(feature: Any) -> tuple[str, ...]:
    """Return the names of a ClassLabel, or of lists of it; () for other features."""
    if isinstance(feature, list) and len(feature) == 1:  # a list, as of datasets before 4
        return _names_in(feature[0])
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    return _names_in(feature.get("feature"))


READERS: dict[str, Callable[[Path, _Wanted], Table]] = {
    ".tsv": _read_delimited,
    ".csv": _read_delimited,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
