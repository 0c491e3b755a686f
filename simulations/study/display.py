"""A live view of a study: running, finished, and failed cells, and the time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedpeft.files import read_object
from fedpeft.readable import readable_seconds
from fedpeft.runs.folder import PROGRESS
from simulations.study.cells import Cell
from simulations.study.folder import StudyFolder
from simulations.study.table import Finished

_SHOWN = 10  # ended cells in the live view


class StudyDisplay:
    """Shows a study while the context is open: live in a terminal, otherwise a line per cell."""

    def __init__(self, folder: StudyFolder, console: Console):
        self._folder, self._console = folder, console
        self._phase, self._total, self._done, self._failed = "", 0, 0, 0
        self._running: dict[str, tuple[Cell, float]] = {}  # and when it began
        self._took: list[float] = []  # seconds of the cells that ended in this phase
        self._last: deque[str] = deque(maxlen=_SHOWN)
        self._live = Live(get_renderable=self._view, console=console, refresh_per_second=2)

    def __enter__(self) -> StudyDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, phase: str, cells: Sequence[Cell], finished: int) -> None:
        """See ``simulations.study.execution.Watch``."""
        self._phase, self._total, self._done, self._failed = phase, len(cells), finished, 0
        self._took.clear()
        before = f", {finished} finished before" if finished else ""
        self.say(f"{phase}: {len(cells)} runs{before}")

    def started(self, cell: Cell) -> None:
        """See ``Watch``."""
        self._running[cell.name] = cell, time.monotonic()

    def ended(self, cell: Cell, finished: Finished | None, reason: str) -> None:
        """See ``Watch``."""
        _, began = self._running.pop(cell.name, (cell, time.monotonic()))
        self._took.append(time.monotonic() - began)
        self._done, self._failed = self._done + bool(finished), self._failed + (not finished)
        line = f"[{self._done + self._failed}/{self._total}] {self.labels(cell)}: "
        if finished:
            result = finished.result
            score = "-" if result["score"] is None else f"{result['score']:.4f}"
            line += f"{result['metric']} {score} in {readable_seconds(self._took[-1])}"
        else:
            line += f"failed: {reason}"
        self.say(f"{line}; {self._left()}")

    def say(self, line: str) -> None:
        """See ``Watch``."""
        if self._console.is_terminal:
            self._last.append(line)
        else:
            self._console.print(line, soft_wrap=True)

    @staticmethod
    def labels(cell: Cell) -> str:
        """Return a cell's labels as text."""
        return " · ".join(cell.labels.values())

    def _left(self) -> str:
        remaining = self._total - self._done - self._failed
        if not remaining:
            return "all done"
        if not self._took:
            return f"{remaining} left"
        together = min(len(self._running) + 1, remaining)  # and the one that has just ended
        seconds = sum(self._took) / len(self._took) * remaining / together
        return f"about {readable_seconds(seconds)} left"

    def _view(self) -> Group:
        running = Table(box=None, padding=(0, 2), show_header=False)
        for cell, began in list(self._running.values()):
            progress = read_object(self._folder.run_of(cell).path / PROGRESS)
            number, rounds = progress.get("round"), cell.experiment.federation.rounds
            where = f"round {number}/{rounds}" if number else "starting"
            running.add_row(self.labels(cell), where, readable_seconds(time.monotonic() - began))
        failed = f", {self._failed} failed" if self._failed else ""
        head = f"{self._phase}: {self._done} of {self._total} done{failed}; {self._left()}"
        return Group(*(Text(line) for line in list(self._last)), running, Text(head, "bold"))
