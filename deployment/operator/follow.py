"""Follow a run at a server until it has ended and its files are copied to this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deployment.hosting.timing import Timing
from deployment.operator.flwr_cli import UnknownRun
from deployment.operator.mirror import Lost, Mirror, RefusedToken
from deployment.operator.submit import Status, status
from fedpeft.errors import RunFailed, UserError, printable
from fedpeft.files import read_object
from fedpeft.runs.folder import PROGRESS, RESULT, RunFolder
from server.deployed import ENDED

_DEAD = ("No heartbeat", "unknown error")  # Flower's details of an app that was killed or ended


def follow(
    mirror: Mirror, run: str, say: Callable[[str], None], timing: Timing | None = None
) -> None:
    """Copy a run's files while it runs; return when it has finished and every file is copied.

    If the server cannot be reached or gives no valid answer, for example during a restart, try
    again forever: the run may continue meanwhile.

    Args:
        mirror: the mirror of the run's folder.
        run: Flower's id of the run.
        say: called with a line when the connection is lost or is back, while nodes are missing,
            and once for each node that is refused or does not evaluate.
        timing: pauses between updates and between questions to Flower; None: the defaults.

    Raises:
        RunFailed: the run failed or was stopped; the message gives the reason.
        UserError: the run was refused because of the user's input.
        RefusedToken: the server does not accept the token.
        UnknownRun: the server does not know the run.
    """
    lost, asked, timing = False, time.monotonic(), timing or Timing()
    notices = _Notices(mirror.folder, say)
    while True:
        try:
            mirror.update()
            notices.report()
            # The file may precede Flower's status, or be left by an earlier attempt.
            ended = (mirror.folder / ENDED).exists()
            if ended or time.monotonic() - asked > timing.questions:
                now = status(mirror.connection, run)
                asked = time.monotonic()
                if now.finished:
                    names = mirror.fetch()
                    notices.report()
                    break
            if lost:
                say("connected again")
            lost = False
        except (RefusedToken, UnknownRun):
            raise
        except (Lost, UserError) as error:
            if not lost:
                say(f"{error}; trying again until it is back")
            lost = True
        time.sleep(timing.updates)
    _check_end(mirror, names, now, run)


def reason(flower: Status, ended: dict[str, Any] | None) -> str:
    """Return in one line why a run did not complete.

    Args:
        flower: Flower's status of the run.
        ended: the run's file ``server.deployed.ENDED``, if it wrote one.
    """
    hint = "the same command with --resume continues after its last round"
    if flower.end == "stopped":
        return f"the run was stopped at the server; {hint}"
    if ended and ended.get("stopped"):
        return f"the server was stopped, and the run with it; {hint}"
    if ended and not ended.get("ok") and str(ended.get("reason", "")).strip():
        return " ".join(str(ended["reason"]).split())
    if not flower.details or any(words in flower.details for words in _DEAD):
        return f"the server app died; {hint}"
    return flower.details


class _Notices:
    """Lines about a run's nodes; each is reported once."""

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self.folder, self.say = RunFolder(folder), say
        self._reported: set[str] = set()

    def report(self) -> None:
        """Report new lines; ignore damaged files."""
        with suppress(UserError, KeyError, TypeError):
            for line in [*self.folder.noted(), *self._missing()]:
                # A part may come from a node.
                line = printable(line)
                if line not in self._reported:
                    self._reported.add(line)
                    self.say(line)

    def _missing(self) -> list[str]:
        progress = read_object(self.folder.path / PROGRESS)
        if progress.get("phase") != "wait":
            return []
        connected = f"{progress['done']} of {progress['total']} connected"
        missing = ", ".join(map(str, progress.get("missing", [])))
        return [f"waiting for nodes: {connected}; missing: {missing}"]


def _check_end(mirror: Mirror, names: Sequence[str], flower: Status, run: str) -> None:
    """Raise RunFailed, or UserError, unless a run with these copied files has completed."""
    if flower.end != "completed":
        ended = _ended(mirror.folder, run)
        mistake = ended and ended.get("mistake")
        raise (UserError if mistake else RunFailed)(reason(flower, ended))
    if RESULT not in names:
        raise RunFailed(f"run '{mirror.name}' has completed, but the server has no {RESULT} of it")


def _ended(folder: Path, run: str) -> dict[str, Any] | None:
    """Return the run's file about its end, unless an earlier attempt wrote it."""
    ended = read_object(folder / ENDED)
    return ended if ended.get("run") == run else None
