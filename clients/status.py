"""What a node is doing, for ``fedpeft node status``: its processes and its last message.

Read from /proc and the log, so that looking disturbs nothing: a connection to the worker would
wait behind the message in hand, and taking the lock for a moment could refuse a start.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clients.channel import is_listening
from clients.state import log_path, socket_path
from fedpeft.errors import UserError

#: Processes of a node, and how a word of their command lines ends.
CHILDREN = {
    "worker": "clients.worker",
    "supernode": "flower-supernode",
    "superexec": "flower-superexec",
}
_TAIL = 1 << 20  # bytes of the log that are looked through
_RESTART = re.compile(r"; restart (\d+) in ")
_SERVED = re.compile(r": (done|an error) in [\d.]+ s$")


def describe_node(state: Path) -> dict[str, Any]:
    """Return ``{"up", "pid", "since", "worker", "children", "last_message"}``, fit for JSON.

    ``up`` is whether all runs that should, ``pid`` the process of `fedpeft node up` and ``since``
    its start, null when it is gone; ``worker`` is "listening", "away", or "none" if the node does
    without. ``children`` maps names to ``{"pid", "restarts"}``. ``last_message`` is the last one
    that the worker answered: ``{"time", "run", "message"}``, or null. Times are ISO 8601 in UTC.

    Raises:
        UserError: no node's state folder, or one that this user may not read.
    """
    state = state.resolve()
    lines = _tail(state)
    main, children = _processes(state)
    since = main.started() if main else None
    worker = "listening" if is_listening(socket_path(state)) else "away"
    if main and "--no-worker" in main.words:
        worker = "none"
        del children["worker"]
    restarts = _restarts(lines, since) if since else {}
    return {
        "up": main is not None and all(children.values()) and worker != "away",
        "pid": main.pid if main else None,
        "since": since.isoformat(timespec="seconds") if since else None,
        "worker": worker,
        "children": {
            name: {"pid": pid, "restarts": restarts.get(name, 0)} for name, pid in children.items()
        },
        "last_message": _last_message(lines),
    }


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    ticks: int  # of the kernel's clock, from its start to that of the process
    words: tuple[str, ...]  # command line

    @classmethod
    def read(cls, pid: int) -> _Process:
        """Raise OSError if it has ended."""
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        # The name, second and in brackets, may hold anything.
        numbers = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return cls(pid, int(numbers[1]), int(numbers[19]), tuple(words))

    def started(self) -> datetime:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - self.ticks / os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(time.time() - age, UTC)


def _processes(state: Path) -> tuple[_Process | None, dict[str, int | None]]:
    """Return the process of `fedpeft node up`, if it runs, and the pids of its children."""
    running = {each.pid: each for each in _all_processes()}
    kinds = {pid: kind for pid, each in running.items() if (kind := _kind(each))}
    # By their command lines: superexec closes its environment to other processes of its user.
    mine = {str(state), f'state="{state}"'}
    named = [running[pid] for pid in kinds if mine & set(running[pid].words)]
    parents = [running[each.parent] for each in named if each.parent in running]
    # What a dead one has left behind has another parent.
    main = next((each for each in parents if "up" in each.words), None)
    children: dict[str, int | None] = dict.fromkeys(CHILDREN)
    for pid, kind in kinds.items():
        if main and running[pid].parent == main.pid:
            children[kind] = pid
    return main, children


def _kind(process: _Process) -> str | None:
    """Return which of a node's children a process is."""
    for kind, ending in CHILDREN.items():
        if any(word.endswith(ending) for word in process.words):
            return kind
    return None


def _all_processes() -> Iterator[_Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                yield _Process.read(int(entry.name))


def _tail(state: Path) -> list[dict[str, Any]]:
    """Return the last lines of the node's log."""
    path = log_path(state)
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            raw = file.read().splitlines()
    except OSError as error:
        raise UserError(
            f"--state {state}: no node's folder that you can read ({error.strerror}); give that of "
            "'fedpeft node up', as its user"
        ) from None
    found = []
    for line in raw:
        with suppress(ValueError):  # the first may begin in its middle
            if isinstance(read := json.loads(line), dict):
                found.append(read)
    return found


def _restarts(lines: list[dict[str, Any]], since: datetime) -> dict[str, int]:
    """Return how often each child was restarted; the supervisor counts them from its start."""
    counts = {}
    for line in lines:
        restart = _RESTART.search(line["message"])
        if restart and datetime.fromisoformat(line["time"]) >= since:
            counts[line["source"]] = int(restart[1])
    return counts


def _last_message(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    for line in reversed(lines):
        if line["source"] == "worker" and _SERVED.search(line["message"]):
            return {key: line[key] for key in ("time", "run", "message")}
    return None
