"""Small studies, and what runs and watches them in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simulations.study.cell_process import Job, Outcome, run_job
from simulations.study.cells import Cell
from simulations.study.table import Finished

BASE = """
title = "small"
[base]
backbone = "tiny"
representation = "mean"
task.train_limit = 60
task.eval_limit = 20
federation.clients = 3
federation.rounds = 2
engine.threads = 1
"""
GRID = (
    BASE
    + """
[axes]
seed = [0, 1]
method = [
    { label = "linear", method.name = "linear" },
    { label = "SLaSh 16", method.name = "slash", method.d = 16 },
]
"""
)


class Watched:
    """Remembers what a study says of itself."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.begun: list[str] = []
        self.outcomes: dict[str, str] = {}
        self.lines: list[str] = []

    def begin(self, phase: str, cells: Sequence[Cell], finished: int) -> None:
        self.phases.append((phase, len(cells), finished))

    def started(self, cell: Cell) -> None:
        self.begun.append(cell.name)

    def ended(self, cell: Cell, finished: Finished | None, reason: str) -> None:
        assert bool(finished) != bool(reason)
        self.outcomes[cell.name] = reason

    def say(self, line: str) -> None:
        self.lines.append(line)


def here(jobs: Sequence[Job], started: Callable[[Job], None]) -> Iterator[tuple[Job, Outcome]]:
    """A pool without processes: the same jobs, one after the other."""
    for job in jobs:
        started(job)
        yield job, run_job(job)
