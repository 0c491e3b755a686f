"""The list of all runs and studies, kept up to date for all readers of a page."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from simulations.watch.folders import Found, find
from simulations.watch.rows import Row, RunRow
from simulations.watch.versions import Versions

_SEARCH = 10.0  # seconds between searches for new folders
_FRESH = 1.0  # seconds for which what was read serves all readers


class Listing:
    """Runs and studies below some folders; several threads may use it.

    Raises:
        UserError: see ``folders.find``.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths
        self._found = find(paths)
        self._runs: dict[str, RunRow] = {}
        self._rows = Versions()
        self._searched = time.monotonic()
        self._read = float("-inf")
        self._lock = threading.Lock()

    @property
    def found(self) -> Found:
        """The runs and studies found last."""
        return self._found

    def search(self) -> Found:
        """Look for new folders now."""
        with self._lock:
            self._search()
        return self._found

    def whole(self) -> dict[str, Any]:
        """Return all rows, with a cursor."""
        with self._lock:
            self._refresh()
            return {"rows": self._rows.all(), "cursor": self._rows.cursor}

    def changes(self, cursor: str) -> dict[str, Any] | None:
        """Return the rows that changed since a cursor, and the names that are gone."""
        with self._lock:
            self._refresh()
            return self._rows.since(cursor)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read < _FRESH:
            return
        if now - self._searched > _SEARCH:
            self._search()
        self._keep(self._found.runs)
        for name, run in self._runs.items():
            if run.refresh():
                self._rows.put(name, {"kind": "run", **run.row})
        for name, path in self._found.studies.items():
            self._rows.put(name, _study_row(path))
        self._rows.keep({*self._found.runs, *self._found.studies})
        self._read = time.monotonic()

    def _search(self) -> None:
        try:
            self._found = find(self._paths)
        except UserError:  # the folders are empty now
            self._found = Found()
        self._searched = time.monotonic()

    def _keep(self, runs: Mapping[str, Path]) -> None:
        self._runs = {name: self._runs.get(name) or RunRow(path) for name, path in runs.items()}


def _study_row(path: Path) -> Row:
    """Return how many runs of a study have begun, ended and failed, without planning the study."""
    begun = [*path.glob("cells/*/experiment.toml")]
    return {
        "kind": "study",
        "begun": len(begun),
        "finished": sum((file.parent / "result.json").exists() for file in begun),
        "failed": len([*path.glob("failed/*.txt")]),
    }
