"""The pages of ``fedpeft watch``: lists, runs and studies below some folders."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeft.page.app import Feed
from fedpeft.page.run.feed import RunsFeed
from fedpeft.page.run.run import RunView
from fedpeft.page.run.state import is_run
from simulations.engines.spread import drawn, read_spread
from simulations.frozen import lines_of
from simulations.watch.listing import Listing
from simulations.watch.study import StudyView

_KEPT = 48  # runs and studies that are kept in memory after they were shown


class Folders:
    """The source of the pages of some folders.

    Raises:
        UserError: see ``folders.find``.
    """

    def __init__(self, paths: Sequence[Path]):
        self._listing = Listing(paths)
        self._runs: dict[str, RunView] = {}
        self._studies: dict[str, StudyView] = {}
        self._lock = threading.Lock()

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of runs and studies."""
        found = self._listing.found
        return len(found.runs), len(found.studies)

    def home(self) -> tuple[str, list[str]]:
        """Return the list; or the run or study if there is only one."""
        found = self._listing.found
        if len(found.runs) + len(found.studies) != 1:
            return "list", []
        return ("runs" if found.runs else "study"), [*found.runs, *found.studies]

    def feed(self, view: str, names: Sequence[str]) -> Feed:
        """Return the data of a page.

        Raises:
            KeyError: no such run or study.
        """
        if view == "list":
            return _List(self._listing)
        if view == "study":
            return self._study(names[0])
        return RunsFeed([self._run(name) for name in dict.fromkeys(names)])

    def _study(self, name: str) -> StudyView:
        with self._lock:
            if name not in self._studies:
                path = self._path(name, study=True)
                _forget(self._studies)
                self._studies[name] = StudyView(path, name)
            return self._studies[name]

    def _run(self, name: str) -> RunView:
        path = self._run_path(name)
        with self._lock:
            if name not in self._runs:
                _forget(self._runs)
                self._runs[name] = RunView(path, name, more_of)
            return self._runs[name]

    def _run_path(self, name: str) -> Path:
        study = next((s for s in self._listing.found.studies if name.startswith(f"{s}/")), None)
        if study is not None:
            return self._study(study).run_folder(name)
        return self._path(name, study=False)

    def _path(self, name: str, study: bool) -> Path:
        for found in (self._listing.found, None):
            found = found or self._listing.search()  # it may be new
            folders = found.studies if study else found.runs
            if name in folders and (study or is_run(folders[name])):
                return folders[name]
        raise KeyError(name)


def more_of(path: Path) -> dict[str, Any]:
    """Return what the page of a simulation shows beside the run.

    ``partition``: see ``spread.drawn``; ``frozen``: see ``frozen.lines_of``.
    """
    spread = read_spread(path)
    return {"partition": drawn(spread) if spread else None, "frozen": lines_of(path)}


class _List:
    interval = 2.0

    def __init__(self, listing: Listing):
        self._listing = listing

    def whole(self) -> dict[str, Any]:
        return {"title": "Runs and studies", **self._listing.whole()}

    def changes(self, cursor: str) -> dict[str, Any] | None:
        return self._listing.changes(cursor)


def _forget(kept: dict[str, Any]) -> None:
    """Remove the entries that were added first, so that one more fits."""
    while len(kept) >= _KEPT:
        del kept[next(iter(kept))]
