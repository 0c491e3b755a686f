"""The state of a node, for ``fedpeft node status``: its processes and its last message.

The state is read from files, because a connection to the worker would wait until the worker has
answered its current message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clients.asking import silence
from clients.channel import is_listening
from clients.folder import NodeFolder
from fedpeft.errors import UserError
from fedpeft.hosting.record import read_record
from fedpeft.hosting.timing import Timing

CHILDREN = ("worker", "tunnel", "supernode", "superexec")


def describe_node(state: Path) -> dict[str, Any]:
    """Return a node's state for JSON.

    It is ``{"up", "pid", "since", "worker", "tunnel", "silent", "children", "last_message"}``.
    ``up`` is whether all processes of the node run and its SuperNode is not silent. ``pid`` is the
    process of `fedpeft node up` and ``since`` its start; null if it has ended. ``worker`` is
    "listening", "away", or "none" if the node runs without a worker. ``tunnel`` is the connection
    to the server, ``{"connected", "since", "problem"}``; null while the tunnel does not run or has
    not tried yet. ``silent`` is for how many seconds the SuperNode has not asked for work, null
    below the node's limit (60 s, see ``Timing``); after as long again, Flower's processes are
    restarted. ``children`` maps names to ``{"pid", "restarts"}``. ``last_message`` is the last
    message that the worker answered: ``{"time", "run", "name", "message"}``, or null. Times are
    ISO 8601 in UTC.

    Raises:
        UserError: not the state folder of a node, or this user may not read it.
    """
    folder = NodeFolder(state.resolve())
    try:
        folder.log.stat()
        record = read_record(folder.processes)
        last_message, tunnel = _read(folder.last_message), _read(folder.tunnel)
    except OSError as error:
        raise UserError(
            f"--state {folder.path}: not a node's folder that you can read ({error.strerror}); "
            "expected the folder given to 'fedpeft node up', as the same user"
        ) from None
    pids = record.pids if record else dict.fromkeys(CHILDREN)
    worker = "listening" if is_listening(folder.socket) else "away"
    if "worker" not in pids:
        worker = "none"
    quiet = silence(folder) if record else 0.0
    silent = quiet if quiet > Timing.read(folder.path).silent else None
    return {
        "up": record is not None and all(pids.values()) and worker != "away" and silent is None,
        "pid": record.pid if record else None,
        "since": record.since.isoformat(timespec="seconds") if record else None,
        "worker": worker,
        "tunnel": tunnel if pids.get("tunnel") else None,
        "silent": silent,
        "children": {
            name: {"pid": pid, "restarts": record.restarts[name] if record else 0}
            for name, pid in pids.items()
        },
        "last_message": last_message,
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content
