"""One run as its page shows it: facts that seldom change (``head``), and rows that grow."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.experiment.overrides import leaves
from fedpeft.files import read_object
from fedpeft.privacy_words import privacy_words
from fedpeft.readable import task_title
from fedpeft.vectorfile import EXPERIMENT
from server.runfolder import PROGRESS, RESULT, ROUNDS, START, RunFolder
from server.view.rounds import RoundsTail
from server.view.settings import described
from server.view.state import signature, state_of
from server.view.words import how_to_repeat, how_to_use

_NOTES = 50  # reasons why nodes do not take part


def nothing_more(path: Path) -> dict[str, Any]:
    """Return no further entries for a head."""
    return {}


class RunView:
    """A run's folder, read as it grows; several threads may use it.

    Args:
        path: of the run's folder.
        name: unique among the runs of a page.
        more: returns further entries of the head, from the folder.
    """

    def __init__(
        self, path: Path, name: str, more: Callable[[Path], dict[str, Any]] = nothing_more
    ):
        self.path, self.name, self._more = path, name, more
        self._rows = RoundsTail(path / ROUNDS)
        self._head: dict[str, Any] = {}
        self._known: object = None
        self._session = secrets.token_hex(4)  # cursors of an earlier server are not of this one
        self._progress = signature(path, (PROGRESS,))
        self._digest = ""
        self._lock = threading.Lock()

    def refresh(self) -> str:
        """Read what changed; return the cursor of the present content, see ``update``."""
        with self._lock:
            self._rows.refresh()
            self._progress = signature(self.path, (PROGRESS,))
            state = state_of(self.path)
            known = signature(self.path), state, tuple(self._rows.metrics)
            if known != self._known:
                self._known = known
                self._head = self._described(*state)
                text = json.dumps(self._head, sort_keys=True)
                self._digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            return self._cursor()

    def whole(self) -> dict[str, Any]:
        """Return all that the page shows, with its cursor."""
        self.refresh()
        with self._lock:
            return self._since(0) | {"head": self._head}

    def update(self, cursor: str) -> dict[str, Any] | None:
        """Return what changed since a cursor; None if nothing did.

        Args:
            cursor: of an earlier ``whole`` or ``update``; any other text returns everything.
        """
        if self.refresh() == cursor:
            return None
        with self._lock:
            generation, count, digest = ([*cursor.split("."), "", "", ""])[:3]
            here = generation == self._generation() and count.isdigit()
            change = self._since(min(int(count), len(self._rows)) if here else 0)
            return change if digest == self._digest else change | {"head": self._head}

    def _since(self, count: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "cursor": self._cursor(),
            "from": count,
            "columns": self._rows.since(count),
            "failures": self._rows.failures,
            "damaged": [*self._rows.problems],
            "progress": read_object(self.path / PROGRESS),
        }

    def _cursor(self) -> str:
        return f"{self._generation()}.{len(self._rows)}.{self._digest}.{self._progress[0][1]}"

    def _generation(self) -> str:
        return f"{self._rows.generation}-{self._session}"

    def _described(self, state: str, reason: str) -> dict[str, Any]:
        problems = [f"the run failed: {reason}"] if reason else []
        settings = self._settings(problems)
        result = self._result(problems)
        experiment = dict(leaves(settings))
        private = experiment.get("privacy.unit", "none") != "none"
        return {
            "state": state,
            "problems": problems,
            "notes": self._notes(problems),
            "task": task_title({"name": "?", **settings.get("task", {})}),
            "method": experiment.get("method.name", "?"),
            "backbone": experiment.get("backbone", "?"),
            "clients": experiment.get("federation.clients"),
            "rounds": experiment.get("federation.rounds"),
            "metric": result.get("metric") or (self._rows.metrics or ["score"])[0],
            "start": read_object(self.path / START).get("score"),
            "result": _outcome(result),
            "remarks": _remarks(result),
            "settings": described(settings),
            "private": private,
            "privacy": _promise(result, private),
            "repeat": how_to_repeat(self.path, result),
            "use": how_to_use(self.path, experiment, bool(result)),
            **self._more(self.path),
        }

    def _settings(self, problems: list[str]) -> dict[str, Any]:
        try:
            return tomllib.loads((self.path / EXPERIMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problems.append(f"{EXPERIMENT} cannot be read ({error})")
            return {}

    def _result(self, problems: list[str]) -> dict[str, Any]:
        result = read_object(self.path / RESULT)
        if not result and (self.path / RESULT).exists():
            problems.append(f"{RESULT} is damaged: it holds no JSON object")
        return result

    def _notes(self, problems: list[str]) -> list[str]:
        try:
            return RunFolder(self.path).noted()[-_NOTES:]
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            problems.append(str(error).partition("; start again")[0])
            return []


def _promise(result: Mapping[str, Any], private: bool) -> list[str]:
    """Return what a run promises; [] before the end of a private run."""
    if not private:
        return privacy_words(None)
    if not result:
        return []
    return [
        *privacy_words(result.get("privacy")),
        "The promise does not cover this page, which also shows clients: their numbers of examples "
        "and their failures.",
    ]


def _remarks(result: Mapping[str, Any]) -> list[str]:
    """Return the caveats of the score; [] before the end, and for old runs."""
    remarks = result.get("remarks")
    return [str(remark) for remark in remarks] if isinstance(remarks, list) else []


def _outcome(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entries of result.json that the page shows; None before the end."""
    names = (
        *("score", "rounds", "seconds", "vector_size", "head_size", "epsilon", "seed"),
        *("bytes", "versions", "digests"),
    )
    return {name: result.get(name) for name in names} if result else None
