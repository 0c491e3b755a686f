"""The state of a run according to its files, cheap enough to ask for a thousand runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from fedpeft.files import read_object
from fedpeft.runs.folder import ENDED, PROGRESS, REFUSED, RESULT, ROUNDS, START, RunFolder
from fedpeft.runs.vectorfile import EXPERIMENT

State = Literal["finished", "failed", "stopped", "running", "unfinished"]
Signature = tuple[tuple[int, int, int], ...]
HEAD = (EXPERIMENT, START, RESULT, ENDED, REFUSED)  # files that seldom change
ROWS = (ROUNDS, PROGRESS)  # files that change in every round


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run."""
    return (path / EXPERIMENT).is_file()


def state_of(path: Path) -> tuple[State, str]:
    """Return the state of a run, and the reason if it failed.

    ``running`` means that a process holds the folder's lock, ``unfinished`` that none does: the
    run can be resumed.
    """
    ended = read_object(path / ENDED)
    if ended.get("stopped"):
        return "stopped", ""
    if ended and not ended.get("ok", True):
        return "failed", str(ended.get("reason", ""))
    if (path / RESULT).exists():
        return "finished", ""
    return ("running" if RunFolder(path).in_use() else "unfinished"), ""


def signature(path: Path, names: tuple[str, ...] = HEAD) -> Signature:
    """Return a value that changes when one of the named files changes."""
    stats = []
    for name in names:
        about = (0, 0, 0)
        with suppress(OSError):
            stat = (path / name).stat()
            about = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        stats.append(about)
    return tuple(stats)
