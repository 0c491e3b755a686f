"""A run at a server, followed until it is over and its files are home."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpeft.errors import RunFailed, UserError
from server.deployed import ENDED
from server.remote.flwr_cli import UnknownRun
from server.remote.mirror import Lost, Mirror, RefusedToken
from server.remote.submit import Status, status
from server.runfolder import PROGRESS, RESULT, RunFolder

_INTERVAL = 1.0  # seconds between looks at the run's files
_ASK_EVERY = 20.0  # seconds between questions to Flower, each of which is a process of 2 s
_DEAD = ("No heartbeat", "unknown error")  # Flower's words for an app killed, and for one ended


def follow(mirror: Mirror, run: str, say: Callable[[str], None]) -> None:
    """Bring a run home as it goes on; return when it has finished and every file is here.

    A server that cannot be reached, or answers nothing of use as while it starts again, is waited
    for, for ever: the run may go on meanwhile.

    Args:
        mirror: of the run's folder.
        run: Flower's id of it.
        say: gets a line for people when the connection is lost, and when it is back; for the
            nodes that are waited for; for each that is refused, or does not evaluate, once.

    Raises:
        RunFailed: the run failed or was stopped, in its own words.
        RefusedToken: the server does not take the token.
        UnknownRun: the server does not know the run.
    """
    lost, asked = False, time.monotonic()
    news = _News(mirror.folder, say)
    while True:
        try:
            mirror.update()
            news.tell()
            # The file is there before Flower knows of the end, or is of an earlier try.
            if (mirror.folder / ENDED).exists() or time.monotonic() - asked > _ASK_EVERY:
                found = status(mirror.connection, run)
                asked = time.monotonic()
                if found.finished:
                    names = mirror.fetch()
                    news.tell()
                    _check_end(mirror, names, found, run)
                    return
            if lost:
                say("connected again")
            lost = False
        except (RefusedToken, UnknownRun):
            raise
        except (Lost, UserError) as error:
            if not lost:
                say(f"{error}; trying again until it is back")
            lost = True
        time.sleep(_INTERVAL)


def reason(found: Status, ended: dict[str, Any] | None) -> str:
    """Return why a run did not complete, in one line.

    Args:
        found: what Flower says.
        ended: what the run says itself, if it could: ``server.deployed.ENDED``.
    """
    onward = "the same command with --resume goes on from its last round"
    if found.end == "stopped":
        return f"the run was stopped at the server; {onward}"
    said = " ".join(str(ended.get("reason", "")).split()) if ended and not ended.get("ok") else ""
    if ended and ended.get("stopped"):
        return f"the server was stopped, and the run with it; {onward}"
    if said:
        return said
    if not found.details or any(words in found.details for words in _DEAD):
        return f"the server app died; {onward}"
    return found.details


class _News:
    """Tells what a run says of its nodes, each line once."""

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self.folder, self.say = RunFolder(folder), say
        self.said: set[str] = set()

    def tell(self) -> None:
        """Say what has not been said; files that are damaged say nothing."""
        with suppress(UserError, KeyError, TypeError):
            for line in [*self.folder.noted(), *self._missing()]:
                # A node may have said a part of it: nothing that could steer a terminal.
                plain = "".join(c if c.isprintable() else "?" for c in line)
                if plain not in self.said:
                    self.said.add(plain)
                    self.say(plain)

    def _missing(self) -> list[str]:
        progress = _table(self.folder.path / PROGRESS)
        if progress.get("phase") != "wait":
            return []
        there, missing = f"{progress['done']} of {progress['total']}", progress.get("missing", [])
        return [f"waiting for nodes: {there} connected; missing: {', '.join(map(str, missing))}"]


def _check_end(mirror: Mirror, names: Sequence[str], found: Status, run: str) -> None:
    """Raise RunFailed unless a run, whose files are all here, completed."""
    if found.end != "completed":
        raise RunFailed(reason(found, _ended(mirror.folder, run)))
    if RESULT not in names:
        raise RunFailed(f"run '{mirror.name}' has completed, but the server has no {RESULT} of it")


def _ended(folder: Path, run: str) -> dict[str, Any] | None:
    """Return what a run says of its end itself; not what an earlier try has left."""
    found = _table(folder / ENDED)
    return found if found.get("run") == run else None


def _table(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; an empty one where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
