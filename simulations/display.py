"""A live view of a run, read from the files of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from fedpeft.experiment.config import Experiment
from fedpeft.files import read_object
from fedpeft.readable import readable_bytes, readable_epsilon, readable_seconds
from fedpeft.tasks.caveats import rounding_remark
from fedpeft.vectorfile import EXPERIMENT
from server.records import WAYS, Measured, RoundLine
from server.runfolder import PROGRESS, RunFolder
from simulations.following import Follower
from simulations.spread import called, names_of

_SHOWN = 12  # rounds in the live table


class Display:
    """Shows a run while the context is open: a live table in a terminal, otherwise plain lines."""

    def __init__(self, folder: RunFolder, rounds: int, metric: str, console: Console):
        self.folder, self.rounds, self.metric, self.console = folder, rounds, metric, console
        self._lines: list[RoundLine] = []
        self._printed = len(folder.rounds())  # rounds that an earlier session printed
        self._start = folder.started()  # printed by an earlier session, too
        self._warned = self._printed > 0
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            live = Live(console=self.console, auto_refresh=False)
            self._live = self._stack.enter_context(live)
        self._stack.enter_context(Follower(self.folder, self._show))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _show(self, lines: list[RoundLine]) -> None:
        self._lines = lines
        if self._live:
            self._live.update(self._table(), refresh=True)
        else:
            self._print_new()

    def _print_new(self) -> None:
        if self._start is None and (start := self.folder.started()):
            self._start = start
            self.console.print(
                f"start  {self.metric} {_score(start)}", highlight=False, soft_wrap=True
            )
        for line in self._lines[self._printed :]:
            cells = self._cells(line)
            title = "epsilon" if line.get("privacy") else "loss"
            self.console.print(
                f"round {cells[0]}/{self.rounds}  {self.metric} {cells[1]}  {title} {cells[2]}  "
                f"up {cells[3]}  down {cells[4]}  {cells[5]} a round  "
                f"{self._time_left(line['round'])}",
                highlight=False,
                soft_wrap=True,
            )
            self._warn(line)
            for failure in line["failed"]:
                self.console.print(
                    f"  {called(failure, self._names)} failed: {failure['reason']}",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )
        self._printed = max(self._printed, len(self._lines))

    def _warn(self, line: RoundLine) -> None:
        """Say once, while there is time to stop, that rounding drowns the updates."""
        if not self._warned and (caveats := line.get("caveats")):
            experiment = Experiment.read(self.folder.path / EXPERIMENT)
            for remark in rounding_remark(caveats, experiment):
                self._warned = True
                self.console.print(f"  {remark}", highlight=False, markup=False, soft_wrap=True)

    @cached_property
    def _names(self) -> Sequence[str]:
        return names_of(self.folder.path)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2))
        private = any(line.get("privacy") for line in self._lines)
        loss = "epsilon" if private else "train loss"
        for title in ("round", self.metric, loss, "up", "down", "time", "failed"):
            table.add_column(title, justify="right")
        start = self.folder.started()
        if start and len(self._lines) < _SHOWN:
            table.add_row("start", _score(start))
        for line in self._lines[-_SHOWN:]:
            table.add_row(*self._cells(line), str(len(line["failed"]) or ""))
        outer = Table.grid()
        outer.add_row(table)
        outer.add_row(self._bar())
        return outer

    def _bar(self) -> Progress:
        done = self._lines[-1]["round"] if self._lines else 0
        part, text = 0.0, "" if done else "starting"
        status = read_object(self.folder.path / PROGRESS)
        if status and status["round"] > done:
            part = status["done"] / max(status["total"], 1) * (status["phase"] == "train")
            part += status["phase"] == "evaluate"
            text = f"round {status['round']}: {status['phase']} {status['done']}/{status['total']}"
        bar = Progress(
            BarColumn(40), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.description}")
        )
        text = f"{text}  {self._time_left(done)}".strip() if done else text
        bar.add_task(text, total=100, completed=round(100 * (done + 0.9 * part) / self.rounds))
        return bar

    def _cells(self, line: RoundLine) -> list[str]:
        """Return round, score, loss or epsilon, total bytes up and down, seconds of the round.

        A private run has no loss: it stays with the clients.
        """
        loss = "-" if line["loss"] is None else f"{line['loss']:.4f}"
        sizes = [past["bytes"] for past in self._lines if past["round"] <= line["round"]]
        up, down = (sum(size[way]["message"] for size in sizes) for way in WAYS)
        width = len(str(self.rounds))
        return [
            f"{line['round']:>{width}}",
            _score(line),
            readable_epsilon(line["epsilon"]) if line.get("privacy") else loss,
            readable_bytes(up),
            readable_bytes(down),
            readable_seconds(line["seconds"]),
        ]

    def _time_left(self, done: int) -> str:
        recent = [line["seconds"] for line in self._lines if line["round"] <= done][-5:]
        left = (self.rounds - done) * sum(recent) / max(len(recent), 1)
        return f"{readable_seconds(left)} left" if done < self.rounds else "done"


def _score(measured: Measured) -> str:
    return "-" if measured["score"] is None else f"{measured['score']:.4f}"
