"""The first page of a server: health, nodes, runs, refusals, and the end of the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError, printable
from fedpeft.hosting.processes import Supervisor
from fedpeft.vectorfile import IDENTITY
from fedpeft.version import __version__
from server.host.folder import ServerFolder
from server.host.health import superlink_answers
from server.host.page.log import REFUSED, log_tail
from server.host.presence import Line, Presence, connected_nodes
from server.host.runs import (
    RUN_FILES,
    Run,
    read_run,
    run_folders,
    sent_by_client,
    with_starting,
)
from server.host.status import describe_nodes
from server.remote.connection import Connection
from server.runfolder import BYTES
from server.runfolder import REFUSED as REFUSED_NODES
from server.view.state import signature, state_of
from server.wire_bytes import read_wire

_RUNS = 50  # the latest ones
_REFUSALS = 50
_LINES = 60  # of the log
_LONGEST = 600  # characters of a reason


class Overview:
    """The content of the page, read from the files of the server at each call of ``read``.

    Args:
        state: the server's folder.
        supervisor: of its processes.
        presence: Flower's view of the nodes.
    """

    def __init__(self, state: ServerFolder, supervisor: Supervisor, presence: Presence):
        self._state, self._supervisor, self._presence = state, supervisor, presence
        self._connection: Connection = state.connection()
        self._read: dict[Path, tuple[object, Run]] = {}  # with the signature of its files
        self._sent: dict[Path, tuple[object, dict[int, dict[str, int]]]] = {}

    def read(self) -> dict[str, Any]:
        """Return the entries of the page, see ``fedpeft.page.snapshots``."""
        up = superlink_answers(self._connection)
        runs, log = self._runs(), log_tail(self._state.log, _LINES)
        nodes, problem = self._nodes(runs, up)
        return {
            "title": f"Server {(self._state.hosts or ('localhost',))[0]}",
            "server": self._server(up),
            "children": self._children(),
            "nodes": nodes,
            "problems": [problem] if problem else [],
            "runs": [_described(folder, run) for folder, run in reversed(runs.items())],
            "absent": _absent_nodes(runs),
            "refused": _refused_requests(log),
            "log": log,
        }

    def _server(self, up: bool) -> dict[str, Any]:
        children = self._children()
        return {
            "superlink": up,
            "healthy": up and all(child["answers"] for child in children),
            "version": __version__,
            "host": self._state.host,
            "port": str(self._state.ports["public"]),
        }

    def _children(self) -> list[dict[str, Any]]:
        return [{"name": name, **child} for name, child in self._supervisor.children().items()]

    def _runs(self) -> dict[Path, Run]:
        """Return the latest runs, the last one at the end; read only those that changed."""
        current: dict[Path, tuple[object, Run]] = {}
        for folder in run_folders(self._state.path)[-_RUNS:]:
            now = signature(folder, RUN_FILES)
            before, run = self._read.get(folder, (None, None))
            current[folder] = (now, run if run and before == now else read_run(folder))
        self._read = current
        self._sent = {folder: sent for folder, sent in self._sent.items() if folder in current}
        read = {folder: run for folder, (_, run) in current.items()}
        return with_starting(self._state.path, read)

    def _sent_by_client(self, folder: Path) -> dict[int, dict[str, int]]:
        now = signature(folder, (BYTES,))
        if self._sent.get(folder, (None, {}))[0] != now:
            self._sent[folder] = now, sent_by_client(folder)
        return self._sent[folder][1]

    def _nodes(self, runs: dict[Path, Run], up: bool) -> tuple[list[dict[str, Any]], str]:
        """Return the nodes, and why there are none: a file is damaged; otherwise ""."""
        flower = self._presence.known() if up else {}
        lines, wire = connected_nodes(self._state.path), read_wire(self._state.path)
        if not self._supervisor.children().get("gateway", {"answers": True})["answers"]:
            lines = {}
        versions = {run.name: _version(folder) for folder, run in runs.items()}
        try:
            nodes = describe_nodes(self._state.path, flower, runs, self._sent_by_client)
        except UserError as error:
            return [], str(error)
        described = [
            {
                **node,
                "node_id": str(node["node_id"]),  # 64 bits, which JavaScript would round
                "wire": wire.get(node["node_id"]),
                "version": versions.get(node["run"], ""),
                **_presence(node, lines.get(node["node_id"])),
            }
            for node in nodes
        ]
        return described, ""


def _presence(node: Mapping[str, Any], line: Line | None) -> dict[str, Any]:
    """Return a node's state, and when it was last seen; null if it is online.

    The gateway's view precedes Flower's: it notices the end of a connection at once.
    """
    if line and line.connected:
        return {"state": "online", "last_seen": None}
    seen = max(line.since if line else "", _earlier(node))
    return {"state": "away" if seen else "never seen", "last_seen": seen or None}


def _earlier(node: Mapping[str, Any]) -> str:
    """Return when Flower or a run saw a node that is not online, or ""."""
    return "" if node["state"] == "online" else str(node["last_seen"] or "")


def _version(folder: Path) -> str:
    """Return the version of a run's nodes: a node with another one than the server is refused."""
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads((folder / IDENTITY).read_text(encoding="utf-8")).get("version", ""))
    return ""


def _described(folder: Path, run: Run) -> dict[str, Any]:
    state = run.state if run.state in ("damaged", "starting") else state_of(folder)[0]
    last = run.last
    return {
        "name": run.name,
        "state": state,
        "reason": printable(run.reason, _LONGEST),
        "changed": run.changed,
        "round": last["round"] if last else 0,
        "rounds": run.rounds,
        "clients": last["clients"] if last else None,
        "score": run.score,
        "epsilon": last["epsilon"] if last else None,
        "private": bool(last and last["epsilon"] is not None),
        "sent": {way: sum(kind[way] for kind in run.bytes.values()) for way in ("up", "down")},
    }


def _absent_nodes(runs: Mapping[Path, Run]) -> list[dict[str, Any]]:
    """Return why nodes did not take part in the runs, or not in all rounds, the latest first."""
    return [
        {"run": run.name, "round": entry["round"], "reason": printable(entry["message"], _LONGEST)}
        for folder, run in reversed([*runs.items()])
        for entry in reversed(_noted(folder))
    ][:_REFUSALS]


def _noted(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / REFUSED_NODES).read_text(encoding="utf-8").split("\n")[:-1]
        entries = map(json.loads, lines[-_REFUSALS:])
        return [{"round": int(e["round"]), "message": str(e["message"])} for e in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _refused_requests(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests that the gateway refused, as far as the end of the log has them."""
    lines = [line["text"] for line in log if line["source"] == "gateway"]
    counts = Counter(line for line in lines if line.startswith(REFUSED))
    return [
        {"reason": text.removeprefix(REFUSED), "times": times}
        for text, times in counts.most_common(_REFUSALS)
    ]
