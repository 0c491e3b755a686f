"""The feed of a page of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpeft.page.run.run import RunView


def run_data(runs: Sequence[RunView]) -> dict[str, Any]:
    """Return the entries of the page of some runs, with a ``cursor``."""
    read = [run.whole() for run in runs]
    title = read[0]["name"] if len(read) == 1 else f"{len(read)} runs compared"
    return {"title": title, "runs": read, "cursor": _joined([run["cursor"] for run in read])}


class RunsFeed:
    """The feed of the page of some runs, see ``fedpeft.page.app.Feed``."""

    interval = 0.5

    def __init__(self, runs: Sequence[RunView]):
        self._runs = runs

    def whole(self) -> dict[str, Any]:
        """Return all runs, with a cursor."""
        return run_data(self._runs)

    def changes(self, cursor: str) -> dict[str, Any] | None:
        """Return what changed since a cursor, with a new one; None if nothing did."""
        cursors = cursor.split("_")
        cursors += [""] * (len(self._runs) - len(cursors))
        changes = {}
        for at, run in enumerate(self._runs):
            if change := run.update(cursors[at]):
                changes[at], cursors[at] = change, change["cursor"]
        if not changes:
            return None
        return {"runs": [*changes.values()], "cursor": _joined(cursors[: len(self._runs)])}


def _joined(cursors: Sequence[str]) -> str:
    return "_".join(cursors)
