"""A live view of a run: follows the files of its folder, see ``following``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from math import ceil
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from server.runfolder import PROGRESS, RunFolder
from simulations.following import Follower

_SHOWN = 12  # rounds in the live table


def readable_bytes(count: float) -> str:
    """Return a number of bytes for people: ``7.2 KB`` (1 KB = 1,000 bytes)."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def readable_seconds(seconds: float) -> str:
    """Return a duration for people: ``2 min 05 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def readable_epsilon(epsilon: float | None) -> str:
    """Return an epsilon, rounded up; ``infinite`` where nothing bounds it."""
    return "infinite" if epsilon is None else f"{ceil(100 * epsilon) / 100:.2f}"


class Display:
    """Shows a run while the context is open: a live table in a terminal, else plain lines."""

    def __init__(self, folder: RunFolder, rounds: int, metric: str, console: Console):
        self.folder, self.rounds, self.metric, self.console = folder, rounds, metric, console
        self._lines: list[dict[str, Any]] = []
        self._printed = len(folder.rounds())  # what an earlier session of the run has shown
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

    def _show(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines
        if self._live:
            self._live.update(self._table(), refresh=True)
        else:
            self._print_new()

    def _print_new(self) -> None:
        for line in self._lines[self._printed :]:
            cells = self._cells(line)
            told = "epsilon" if line.get("privacy") else "loss"
            self.console.print(
                f"round {cells[0]}/{self.rounds}  {self.metric} {cells[1]}  {told} {cells[2]}  "
                f"up {cells[3]}  down {cells[4]}  {cells[5]} a round  "
                f"{self._time_left(line['round'])}",
                highlight=False,
                soft_wrap=True,
            )
            for failure in line["failed"]:
                self.console.print(
                    f"  client {failure['client']} failed: {failure['reason']}",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )
        self._printed = max(self._printed, len(self._lines))

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2))
        told = "epsilon" if self._private() else "train loss"
        for title in ("round", self.metric, told, "up", "down", "time", "failed"):
            table.add_column(title, justify="right")
        for line in self._lines[-_SHOWN:]:
            table.add_row(*self._cells(line), str(len(line["failed"]) or ""))
        outer = Table.grid()
        outer.add_row(table)
        outer.add_row(self._bar())
        return outer

    def _private(self) -> bool:
        return any(line.get("privacy") for line in self._lines)

    def _bar(self) -> Progress:
        done = self._lines[-1]["round"] if self._lines else 0
        part, text = 0.0, "" if done else "starting"
        status = self._status()
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

    def _status(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder.path / PROGRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _cells(self, line: dict[str, Any]) -> list[str]:
        """Return round, score, loss or epsilon, bytes up and down so far, seconds of the round.

        With privacy the loss stays with the clients.
        """
        told = "-" if line["loss"] is None else f"{line['loss']:.4f}"
        upto = [each["bytes"] for each in self._lines if each["round"] <= line["round"]]
        up, down = (sum(each[side]["message"] for each in upto) for side in ("up", "down"))
        score = "-" if line["score"] is None else f"{line['score']:.4f}"
        width = len(str(self.rounds))
        return [
            f"{line['round']:>{width}}",
            score,
            readable_epsilon(line["epsilon"]) if line.get("privacy") else told,
            readable_bytes(up),
            readable_bytes(down),
            readable_seconds(line["seconds"]),
        ]

    def _time_left(self, done: int) -> str:
        recent = [line["seconds"] for line in self._lines if line["round"] <= done][-5:]
        left = (self.rounds - done) * sum(recent) / max(len(recent), 1)
        return f"{readable_seconds(left)} left" if done < self.rounds else "done"
