"""The row of a run in a list of runs, read again only when the run's files change."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedpeft.files import read_object
from fedpeft.readable import task_title
from fedpeft.vectorfile import EXPERIMENT
from server.runfolder import RESULT, ROUNDS
from server.view.state import HEAD, ROWS, signature, state_of

_TAIL = 1 << 16  # bytes at the end of rounds.jsonl that are searched for its last line
_SELDOM = 8  # a finished run is checked for changes in every eighth call

Row = dict[str, Any]


class RunRow:
    """The row of one run, kept up to date by ``refresh``."""

    def __init__(self, path: Path):
        self.path = path
        self.row: Row = {}
        self._seen: object = None
        self._settings: dict[str, Any] | None = None
        self._calls = 0

    def refresh(self) -> bool:
        """Read the run again if its files changed; return whether its row changed."""
        self._calls += 1
        if self.row.get("state") == "finished" and self._calls % _SELDOM:
            return False
        state, reason = state_of(self.path)
        seen = signature(self.path, (*HEAD, *ROWS)), state
        if seen == self._seen:
            return False
        self._seen = seen
        about = {"state": state, "reason": reason, "changed": _changed(self.path)}
        before, self.row = self.row, {**about, **self._content()}
        return before != self.row

    def _content(self) -> Row:
        result = read_object(self.path / RESULT)
        try:
            if self._settings is None:  # written once, before anything else
                text = (self.path / EXPERIMENT).read_text(encoding="utf-8")
                self._settings = tomllib.loads(text)
            row = _finished(result) if result else self._unfinished(self._settings)
            return {**row, "task": task_title(self._settings["task"])}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"state": "damaged", "reason": f"{type(error).__name__}: {error}"}

    def _unfinished(self, settings: dict[str, Any]) -> Row:
        last = _last_line(self.path / ROUNDS)
        metrics = (last.get("metrics") or {}).items()
        metric = [name for name, value in metrics if value == last.get("score")]
        return {
            "method": settings["method"]["name"],
            "backbone": settings["backbone"],
            "metric": metric[0] if metric else "score",
            "score": last.get("score"),
            "round": last.get("round", 0),
            "rounds": settings["federation"]["rounds"],
            "clients": settings["federation"]["clients"],
            "epsilon": last.get("epsilon"),
            "private": settings["privacy"]["unit"] != "none",
            "sent": None,
        }


def _finished(result: dict[str, Any]) -> Row:
    sent = [result["bytes"], *filter(None, [result["bytes"].get("start")])]
    return {
        **{key: result[key] for key in ("method", "backbone", "metric", "score")},
        "round": result["rounds"],
        "rounds": result["rounds"],
        "clients": result["clients"],
        "epsilon": result["epsilon"],
        "private": bool(result.get("privacy")),
        "sent": sum(kind["up"]["payload"] for kind in sent) / result["clients"],
    }


def _changed(path: Path) -> float:
    """Return when a run last wrote a round, in seconds since 1970."""
    files = signature(path, (EXPERIMENT, RESULT, *ROWS))
    return max(changed for _, changed, _ in files) / 1e9


def _last_line(path: Path) -> dict[str, Any]:
    """Return the last whole line of a file of JSON objects that can be read; {} without one."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        *lines, _ = file.read().split(b"\n")
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        return value if isinstance(value, dict) else {}
    return {}
