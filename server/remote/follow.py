"""A run at a server, followed until it is over and its files are home."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpeft.errors import RunFailed, UserError
from server.deployed import ENDED
from server.remote.flwr_cli import UnknownRun
from server.remote.mirror import Lost, Mirror, RefusedToken
from server.remote.submit import Status, status
from server.runfolder import RESULT

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
        say: gets a line for people when the connection is lost, and when it is back.

    Raises:
        RunFailed: the run failed or was stopped, in its own words.
        RefusedToken: the server does not take the token.
        UnknownRun: the server does not know the run.
    """
    lost, asked = False, time.monotonic()
    while True:
        try:
            mirror.update()
            # The file is there before Flower knows of the end, or is of an earlier try.
            if (mirror.folder / ENDED).exists() or time.monotonic() - asked > _ASK_EVERY:
                found = status(mirror.connection, run)
                asked = time.monotonic()
                if found.finished:
                    _bring_home(mirror, found, run)
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
        ended: what the run says itself, if it could: ``{"ok": bool, "reason": str, ...}``.
    """
    onward = "the same command with --resume goes on from its last round"
    if found.end == "stopped":
        return f"the run was stopped at the server; {onward}"
    said = " ".join(str(ended.get("reason", "")).split()) if ended and not ended.get("ok") else ""
    if said and not said.startswith("SystemExit"):  # which is SIGTERM
        return said
    if not found.details or any(words in found.details for words in _DEAD):
        return f"the server app died; {onward}"
    return found.details


def _bring_home(mirror: Mirror, found: Status, run: str) -> None:
    """Copy all files of a run that is over; raise RunFailed unless it completed."""
    names = mirror.fetch()
    if found.end != "completed":
        raise RunFailed(reason(found, _ended(mirror.folder, run)))
    if RESULT not in names:
        raise RunFailed(f"run '{mirror.name}' has completed, but the server has no {RESULT} of it")


def _ended(folder: Path, run: str) -> dict[str, Any] | None:
    """Return what a run says of its end itself; not what an earlier try has left."""
    try:
        found = json.loads((folder / ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("run") == run else None
