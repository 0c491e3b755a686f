"""The processes of a running server or node, written by its supervisor for the status commands.

A private file of JSON in the state folder::

    {"pid", "started", "since", "children": {name: {"pid", "started", "restarts"}}}

``started`` is the start of a process in the kernel's ticks since boot. With the pid it identifies
the process, as the kernel reuses pids: after a crash the record is out of date, and is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedpeft.files import PRIVATE, write_together


@dataclass(frozen=True)
class Record:
    """The processes of a server or node that runs now.

    Attributes:
        pid: process of the supervisor.
        since: when the supervisor started.
        pids: process of each child; None while it is not running.
        restarts: number of restarts of each child since then.
    """

    pid: int
    since: datetime
    pids: dict[str, int | None]
    restarts: dict[str, int]


def write_record(
    path: Path, since: datetime, pids: Mapping[str, int], restarts: Mapping[str, int]
) -> None:
    """Write the record of this process, the supervisor, and of its children.

    Args:
        path: of the file.
        since: when the supervisor started.
        pids: processes of the children that run.
        restarts: number of restarts of every child.

    Raises:
        OSError: the file cannot be written.
    """
    children = {
        name: {**_identity(pids.get(name)), "restarts": count} for name, count in restarts.items()
    }
    content = {**_identity(os.getpid()), "since": since.isoformat(), "children": children}
    write_together({path: ((json.dumps(content) + "\n").encode(), PRIVATE)}, replace=True)


def read_record(path: Path) -> Record | None:
    """Return the record of the supervisor that runs now; None if there is none.

    A child that has ended since the record was written has the pid None.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        pid, since = _running(content), datetime.fromisoformat(content["since"])
        children = {str(name): child for name, child in content["children"].items()}
        pids = {name: _running(child) for name, child in children.items()}
        restarts = {name: int(child["restarts"]) for name, child in children.items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):  # damaged
        return None
    return Record(pid, since, pids, restarts) if pid else None


def _identity(pid: int | None) -> dict[str, int | None]:
    return {"pid": pid, "started": _started(pid)}


def _running(process: Mapping[str, int | None]) -> int | None:
    """Return the pid of a recorded process if it is still running."""
    pid, started = process["pid"], process["started"]
    return pid if started is not None and _started(pid) == started else None


def _started(pid: int | None) -> int | None:
    """Return the start of a process in ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets, which may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
