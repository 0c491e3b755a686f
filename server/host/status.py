"""What a server is doing, for ``fedpeft server status``: processes, runs, nodes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpeft.locks import is_held
from server.host.health import superlink_answers
from server.host.presence import flower_nodes, last_seen
from server.host.runs import Run, read_run, run_folders, sent_by_client
from server.host.state import LOCK, ServerState
from server.registry import registered_nodes
from server.remote.connection import Connection

_UNREGISTERED = "unregistered"  # Flower's word for a node that was removed


def describe_server(state: Path) -> dict[str, Any]:
    """Return ``{"up", "pid", "since", "host", "ports", "runs", "nodes"}``, all fit for JSON.

    ``up`` is whether the SuperLink answers, ``pid`` the process of `fedpeft server up` and
    ``since`` its start, null when it is gone. ``runs`` are those of the state folder, the latest
    last; ``nodes`` the registered ones in order, then those that only the SuperLink knows.
    Numbers of a node are those of the latest run it took part in, ``last_seen`` is that of
    ``server.host.presence``; bytes are of messages, times ISO 8601 in UTC.

    Raises:
        UserError: there is no server's state, or it is damaged.
    """
    server = ServerState.read(state)
    connection = server.connection()
    up = superlink_answers(connection)
    pid = _pid(state)
    runs = {folder: read_run(folder) for folder in run_folders(state)}
    return {
        "up": up,
        "pid": pid,
        "since": _iso((state / LOCK).stat().st_mtime) if pid else None,
        "host": server.host,
        "ports": dict(server.ports),
        "runs": [_describe_run(run) for run in runs.values()],
        "nodes": _describe_nodes(state, connection if up else None, runs),
    }


def _pid(state: Path) -> int | None:
    """Return the process of `fedpeft server up`, None if it is not there.

    The lock file of a server that was killed keeps a number that another process may have by now;
    only a server that lives holds the lock.
    """
    try:
        pid = int((state / LOCK).read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid if is_held(state / LOCK) else None


def _describe_run(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "changed": _iso(run.changed),
        "round": run.last.get("round", 0),
        "rounds": run.rounds,
        "score": run.score,
        "bytes": {way: sum(kind[way] for kind in run.bytes.values()) for way in ("up", "down")},
        "epsilon": run.last.get("epsilon"),
    }


def _describe_nodes(
    state: Path, connection: Connection | None, runs: dict[Path, Run]
) -> list[dict[str, Any]]:
    """Return a line for each node; ``connection`` is None while the SuperLink does not answer."""
    flower = flower_nodes(connection) if connection else {}
    names = {node.node_id: node.name for node in registered_nodes(state)}
    for number, said in flower.items():
        if said["status"] != _UNREGISTERED:
            names.setdefault(number, "")
    found = []
    for number, name in names.items():
        said = flower.get(number, {})
        taken_part = _latest_part(number, runs)
        seen = last_seen(said, taken_part.pop("last_seen", ""))
        found.append(
            {
                "name": name,
                "node_id": number,
                "state": said.get("status", "unknown"),
                "last_seen": seen or None,
                **taken_part,
            }
        )
    return found


def _latest_part(node_id: int, runs: dict[Path, Run]) -> dict[str, Any]:
    """Return what a node did in the latest run that it took part in."""
    for folder, run in reversed(runs.items()):
        for entry in run.nodes:
            if entry["node_id"] == node_id:
                sent = sent_by_client(folder).get(entry["client"], {"up": 0, "down": 0})
                return {
                    "run": run.name,
                    **{key: entry[key] for key in ("client", "rounds", "failed", "last_seen")},
                    "bytes": sent,
                    "epsilon": entry["epsilon"],
                }
    none = dict.fromkeys(("run", "client", "rounds", "failed", "bytes"))
    return {**none, "epsilon": {}}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
