"""The state of a server for ``fedpeft server status``: processes, runs, nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpeft.hosting.record import read_record
from server.host.folder import ServerFolder
from server.host.health import ask_health, failing, superlink_answers
from server.host.presence import flower_nodes, last_seen
from server.host.runs import Run, read_run, run_folders, sent_by_client, with_starting
from server.registry import registered_nodes
from server.runfolder import RunFolder

_UNREGISTERED = "unregistered"  # Flower's word for a node that was removed


def describe_server(state: Path) -> dict[str, Any]:
    """Return ``{"up", "failing", "pid", "since", "host", "ports", "runs", "nodes"}`` for JSON.

    The state of a run is that of ``Run``, or "running" while a process works on it.
    ``up`` is whether all processes answer, ``failing`` are those that do not, which takes some
    seconds to notice. ``pid`` is the process of `fedpeft server up` and ``since`` its start, null
    if it does not run. ``runs`` are the runs of the state folder, the latest one last. ``nodes``
    are the registered nodes in order, then those that only the SuperLink knows; the numbers of a
    node are those of the latest run it took part in. Bytes are bytes of messages, times are ISO
    8601 in UTC.

    Raises:
        UserError: the server's state is missing or damaged.
    """
    server = ServerFolder.read(state)
    connection = server.connection()
    record = read_record(server.processes)
    down = failing(ask_health(connection)) if record else []
    answers = superlink_answers(connection)
    runs = with_starting(state, {folder: read_run(folder) for folder in run_folders(state)})
    return {
        "up": answers and not down,
        "failing": down,
        "pid": record.pid if record else None,
        "since": _iso(record.since.timestamp()) if record else None,
        "host": server.host,
        "ports": dict(server.ports),
        "runs": [_describe_run(folder, run) for folder, run in runs.items()],
        "nodes": describe_nodes(state, flower_nodes(connection) if answers else {}, runs),
    }


def _describe_run(folder: Path, run: Run) -> dict[str, Any]:
    running = run.state == "unfinished" and RunFolder(folder).in_use()
    return {
        "name": run.name,
        "state": "running" if running else run.state,
        "reason": run.reason,
        "changed": _iso(run.changed),
        "round": run.last["round"] if run.last else 0,
        "rounds": run.rounds,
        "score": run.score,
        "bytes": {way: sum(kind[way] for kind in run.bytes.values()) for way in ("up", "down")},
        "epsilon": run.last["epsilon"] if run.last else None,
    }


def describe_nodes(
    state: Path,
    flower: Mapping[int, Mapping[str, Any]],
    runs: Mapping[Path, Run],
    sent: Callable[[Path], dict[int, dict[str, int]]] = sent_by_client,
) -> list[dict[str, Any]]:
    """Return an entry for each node, see ``describe_server``.

    Args:
        state: the server's state folder.
        flower: Flower's entries by node id; {} if the SuperLink does not answer.
        runs: the runs, the latest one last.
        sent: returns the bytes of a run's clients.

    Raises:
        UserError: nodes.json or a ``bytes.jsonl`` is damaged.
    """
    names = {node.node_id: node.name for node in registered_nodes(state)}
    for number, entry in flower.items():
        if entry["status"] != _UNREGISTERED:
            names.setdefault(number, "")
    nodes = []
    for number, name in names.items():
        entry = flower.get(number, {})
        latest = _latest_part(number, runs, sent)
        seen = last_seen(entry, latest.pop("last_seen", ""))
        status = entry.get("status", "unknown")
        node = {"name": name, "node_id": number, "state": status, "last_seen": seen or None}
        nodes.append({**node, **latest})
    return nodes


def _latest_part(
    node_id: int,
    runs: Mapping[Path, Run],
    sent: Callable[[Path], dict[int, dict[str, int]]],
) -> dict[str, Any]:
    """Return a node's numbers in the latest run that it took part in."""
    for folder, run in reversed([*runs.items()]):
        for entry in run.nodes:
            if entry["node_id"] == node_id:
                counts = sent(folder).get(entry["client"], {"up": 0, "down": 0})
                return {
                    "run": run.name,
                    **{key: entry[key] for key in ("client", "rounds", "failed", "last_seen")},
                    "away": entry.get("away", 0),  # not in rosters of earlier versions
                    "bytes": counts,
                    "epsilon": entry["epsilon"],
                }
    none = dict.fromkeys(("run", "client", "rounds", "failed", "away", "bytes"))
    return {**none, "epsilon": {}}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
