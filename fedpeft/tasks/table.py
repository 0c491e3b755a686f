"""Tables in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """Rows of a table file, n rows.

    Attributes:
        names: names of all columns in the file, in their order.
        columns: n values by name, of the columns that were read; None or NaN is a missing value.
        numbers: the number of each row in the file, from 1.
        class_names: names of the integers of a column, if the file has them (the ClassLabel of
            ``datasets``).
    """

    names: tuple[str, ...]
    columns: Mapping[str, list[Any]]
    numbers: Sequence[int]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: Sequence[int] | np.ndarray) -> Table:
        """Return the rows with the given indices, in that order."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        numbers = [self.numbers[row] for row in rows]
        return Table(self.names, columns, numbers, self.class_names)
