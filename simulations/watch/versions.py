"""Rows that change, so that each reader receives only what changed since it last asked."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

Row = dict[str, Any]


class Versions:
    """Named rows, each with the version in which it last changed."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(4)  # tells cursors of an earlier process apart
        self._version = 0
        self._rows: dict[str, tuple[int, Row]] = {}
        self._gone: dict[str, int] = {}

    @property
    def cursor(self) -> str:
        """The current version as text."""
        return f"{self._session}.{self._version}"

    def put(self, name: str, row: Row) -> None:
        """Set a row."""
        if name not in self._rows or self._rows[name][1] != row:
            self._version += 1
            self._rows[name] = self._version, dict(row)
            self._gone.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Remove the rows of all other names."""
        for name in [name for name in self._rows if name not in names]:
            self._version += 1
            del self._rows[name]
            self._gone[name] = self._version

    def all(self) -> list[Row]:
        """Return all rows, each with its ``name``."""
        return [{"name": name, **row} for name, (_, row) in self._rows.items()]

    def since(self, cursor: str) -> dict[str, Any] | None:
        """Return ``{"rows", "gone", "whole", "cursor"}`` since a cursor; None if nothing changed.

        For a cursor of another process, all rows are returned, and ``whole`` is true.
        """
        if cursor == self.cursor:
            return None
        session, _, number = cursor.partition(".")
        ours = session == self._session and number.isdigit()
        after = int(number) if ours else -1
        return {
            "rows": [
                {"name": name, **row}
                for name, (version, row) in self._rows.items()
                if version > after
            ],
            "gone": [name for name, version in self._gone.items() if version > after],
            "whole": not ours,
            "cursor": self.cursor,
        }
