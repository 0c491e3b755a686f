"""Follow a growing rounds.jsonl: its lines as columns, its failures, and its damaged lines."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROBLEMS = 20  # damaged lines that are named
_REASONS = 200  # different reasons of failures that are counted
_CLIENTS = 1000  # different clients that are told apart for a reason

Column = list[float | None]


@dataclass
class Failure:
    """A reason why clients failed: how often, how many clients, and in which rounds."""

    reason: str
    times: int
    clients: int
    first: int
    last: int


#: Column -> its value in a line. Bytes are those of the messages and vectors of training.
_COLUMNS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "round": lambda line: line["round"],
    "score": lambda line: line["score"],
    "loss": lambda line: line["loss"],
    "epsilon": lambda line: line.get("epsilon"),
    "seconds": lambda line: line["seconds"],
    "virtual": lambda line: line.get("virtual"),
    "up": lambda line: line["bytes"]["up"]["message"],
    "down": lambda line: line["bytes"]["down"]["message"],
    "payload": lambda line: line["bytes"]["up"]["payload"],
    "clients": lambda line: line["clients"],
    "failed": lambda line: len(line["failed"]),
    "late": lambda line: len(line.get("late", [])),
}


class RoundsTail:
    """The content of a rounds.jsonl, read as it grows.

    A damaged line is named in ``problems`` and left out. A file that was replaced or became
    shorter, as when a run continues from an earlier round, is read again: ``generation`` changes.
    """

    def __init__(self, path: Path):
        self.path = path
        self.generation = 0
        self._inode = 0
        self._clear()

    def _clear(self) -> None:
        self.columns: dict[str, Column] = {name: [] for name in _COLUMNS}
        self.metrics: list[str] = []  # names whose value equals the score in every line
        self.problems: deque[str] = deque(maxlen=_PROBLEMS)
        self._failures: dict[str, Failure] = {}
        self._failed: dict[str, set[int]] = {}
        self._offset = self._line = 0

    def __len__(self) -> int:
        return len(self.columns["round"])

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The reasons of failures, the most frequent first."""
        found = sorted(self._failures.values(), key=lambda failure: -failure.times)
        return [asdict(failure) for failure in found]

    def refresh(self) -> bool:
        """Read what was appended since the last call; return whether anything changed."""
        try:
            about = self.path.stat()
        except FileNotFoundError:
            changed = bool(self._offset)
            if changed:
                self._begin(0)
            return changed
        replaced = about.st_ino != self._inode or about.st_size < self._offset
        if replaced:
            self._begin(about.st_ino)
        if about.st_size == self._offset:
            return replaced
        with self.path.open("rb") as file:
            file.seek(self._offset)
            *lines, rest = file.read().split(b"\n")  # after the last newline: incomplete
            self._offset = file.tell() - len(rest)
        for line in lines:
            self._add(line)
        return replaced or bool(lines)

    def since(self, count: int) -> dict[str, Column]:
        """Return the columns without their first ``count`` values."""
        return {name: values[count:] for name, values in self.columns.items()}

    def _begin(self, inode: int) -> None:
        self._clear()
        self.generation += 1
        self._inode = inode

    def _add(self, text: bytes) -> None:
        self._line += 1
        try:
            line = json.loads(text)
            values = {name: _number(value(line)) for name, value in _COLUMNS.items()}
            failed = [(int(entry["client"]), str(entry["reason"])) for entry in line["failed"]]
            number = int(line["round"])
            needed = ("round", "seconds", "up", "down", "payload", "clients")
            if missing := [name for name in needed if values[name] is None]:
                raise ValueError(f"{missing[0]} is no number")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            name = self.path.name
            reason = f"{type(error).__name__}: {error}"
            self.problems.append(f"{name} line {self._line} is damaged and left out ({reason})")
            return
        for column, value in values.items():
            self.columns[column].append(value)
        for client, reason in failed:
            self._note(number, client, reason)
        if values["score"] is not None and isinstance(line.get("metrics"), dict):
            equal = [name for name, value in line["metrics"].items() if value == line["score"]]
            first = len(self) == 1 or not self.metrics
            self.metrics = equal if first else [name for name in self.metrics if name in equal]

    def _note(self, number: int, client: int, reason: str) -> None:
        if reason not in self._failures and len(self._failures) >= _REASONS:
            reason = "other reasons"
        failure = self._failures.setdefault(reason, Failure(reason, 0, 0, number, number))
        clients = self._failed.setdefault(reason, set())
        if len(clients) < _CLIENTS:
            clients.add(client)
        failure.times, failure.last, failure.clients = failure.times + 1, number, len(clients)


def _number(value: Any) -> float | None:
    """Return a finite number as it is, and None for everything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None
