"""Tables in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """Rows of a table file, n rows.

    Attributes:
        names: names of all columns in the file, in their order.
        columns: n values by name, of the columns that were read; None or NaN is a missing value.
        numbers: the number of each row in the file, from 1.
    """

    names: tuple[str, ...]
    columns: Mapping[str, list[Any]]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: Sequence[int] | np.ndarray) -> Table:
        """Return the rows with the given indices, in that order."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        return Table(self.names, columns, [self.numbers[row] for row in rows])
