"""Data frames of pandas as tables and as Parquet files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError
from fedpeft.tasks.table import Table

if TYPE_CHECKING:
    import pandas as pd


def table_of(frame: pd.DataFrame, name: str) -> Table:
    """Return a data frame as a table, without the names of its rows.

    Args:
        frame: n rows.
        name: for messages.

    Raises:
        UserError: it has no rows, two columns of one name, or a column of mixed types.
    """
    arrow = _arrow(frame, name)
    return Table(tuple(arrow.column_names), arrow.to_pydict(), range(1, len(frame) + 1))


def parquet_of(frame: pd.DataFrame, name: str) -> bytes:
    """Return the content of a Parquet file with a data frame, see ``table_of``."""
    from pyarrow.parquet import write_table

    content = io.BytesIO()
    write_table(_arrow(frame, name), content)
    return content.getvalue()


def _arrow(frame: pd.DataFrame, name: str) -> Any:
    import pyarrow as pa

    if not len(frame):
        raise UserError(f"{name}: has no rows")
    named = frame.rename(columns=str)
    if twice := [*named.columns[named.columns.duplicated()]]:
        raise UserError(f"{name}: two columns have the name '{twice[0]}'")
    try:
        return pa.Table.from_pandas(named, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UserError(f"{name}: is no table: {' '.join(str(error).split())}") from None
