"""One study as its page shows it: its cells and trials as they begin and end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.page.run.state import is_run, signature
from simulations.study.cells import Cell
from simulations.study.execution import best_so_far
from simulations.study.folder import ASKED, STUDY, StudyFolder
from simulations.study.plan import Plan
from simulations.watch.rows import Row, RunRow
from simulations.watch.versions import Versions


class StudyView:
    """A study's folder, read as it grows; several threads may use it."""

    interval = 1.0

    def __init__(self, path: Path, name: str):
        self._folder, self._name = StudyFolder(path), name
        self._plan: Plan | None = None
        self._about: dict[str, Any] = {}
        self._seen: object = None
        self._cells: list[Cell] = []
        self._runs: dict[str, RunRow] = {}
        self._rows = Versions()
        self._scored = -1
        self._lock = threading.Lock()

    def whole(self) -> dict[str, Any]:
        """Return the study and all its rows, with a cursor."""
        with self._lock:
            self._refresh()
            rows = {"rows": self._rows.all(), "cursor": self._rows.cursor}
            return {"title": self._about.get("title") or self._name, "study": self._about, **rows}

    def changes(self, cursor: str) -> dict[str, Any] | None:
        """Return the rows that changed since a cursor, and the names that are gone."""
        with self._lock:
            self._refresh()
            return self._rows.since(cursor)

    def run_folder(self, name: str) -> Path:
        """Return the folder of a run of the study.

        Raises:
            KeyError: there is no such run.
        """
        with self._lock:
            self._refresh()
            folder = self._runs[name].path
        if not is_run(folder):
            raise KeyError(name)
        return folder

    def _refresh(self) -> None:
        seen = signature(self._folder.path, (STUDY, ASKED))
        if seen != self._seen:
            self._seen, self._scored = seen, -1
            self._read_plan()
        if self._plan:
            self._refresh_cells(self._plan)

    def _read_plan(self) -> None:
        self._cells, self._plan = [], None
        try:
            self._plan = self._folder.plan()
        except (UserError, OSError) as error:
            self._about = {"title": "", "about": "", "problem": str(error), "axes": [], "size": 0}
            return
        study, axes = self._plan.study, self._plan.axes
        self._about = {
            "title": study.title,
            "about": study.about,
            "problem": "",
            "axes": [label for axis in axes for label in axis.choices[0].labels],
            "size": self._plan.size,
            "trials": len(self._plan.trials),
        }

    def _refresh_cells(self, plan: Plan) -> None:
        trials = [trial.cell for trial in plan.trials]
        for cell in trials:
            self._put(cell, "trial")
        finished = sum(self._run(cell).row.get("state") == "finished" for cell in trials)
        if finished != self._scored:  # the best settings decide which cells there are
            self._scored = finished
            self._cells = plan.cells(best_so_far(self._folder, plan) if trials else {})
            self._about["others"] = len(self._folder.others(self._cells))
        for cell in self._cells:
            self._put(cell, "cell")
        self._rows.keep({self._named(cell) for cell in (*trials, *self._cells)})

    def _put(self, cell: Cell, kind: str) -> None:
        run, name = self._run(cell), self._named(cell)
        row: Row = {
            "kind": kind,
            "labels": cell.labels,
            "rounds": cell.experiment.federation.rounds,
        }
        if not is_run(run.path):
            reason = self._folder.failure(cell)
            row |= {"state": "failed" if reason else "waiting", "reason": reason}
        else:
            run.refresh()
            row |= run.row
            if row["state"] == "unfinished" and (reason := self._folder.failure(cell)):
                row |= {"state": "failed", "reason": reason}
        self._rows.put(name, row)

    def _run(self, cell: Cell) -> RunRow:
        name = self._named(cell)
        if name not in self._runs:
            self._runs[name] = RunRow(self._folder.run_of(cell).path)
        return self._runs[name]

    def _named(self, cell: Cell) -> str:
        folder = self._folder.run_of(cell).path
        return f"{self._name}/{folder.parent.name}/{folder.name}"
