"""Output that several commands share: consoles, tables, JSON and phrases."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedpeft.experiment.config import Experiment


def plain_console(width: int | None = None, **options: Any) -> Console:
    """Return a console without markup.

    It is as wide as its terminal or else as ``COLUMNS`` says, or ``width`` columns if neither does.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, **options)
    if width and not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = width
    return console


def plain_table(
    columns: Sequence[str],
    *,
    right: Collection[str] = (),
    wrapped: Collection[str] | None = None,
    title: str | None = None,
) -> Table:
    """Return an empty table without borders.

    Args:
        columns: the titles of the columns.
        right: the columns aligned to the right.
        wrapped: the columns that may break lines; None = all.
        title: a line above the table.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=wrapped is not None and column not in wrapped,
            overflow="fold",
        )
    return table


def print_json(value: Any) -> None:
    """Print a value as JSON on several lines."""
    print(json.dumps(value, indent=2, allow_nan=False))


def headline(experiment: Experiment, *facts: str) -> str:
    """Return task, method, backbone and further facts of an experiment in one line."""
    method = f"{experiment.method.name} on {experiment.backbone}"
    return " · ".join([experiment.task.name, method, *facts])


def ago(time: str) -> str:
    """Return the time since an ISO 8601 time: ``12 s ago``, ``3 h ago``."""
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
