"""The nodes that are connected to the gateway now, and since when they are or are not."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from deployment.server.presence import CONNECTED, Line, connected_nodes


class Connected:
    """The state of each node's line, in a file of the state folder.

    A node keeps one connection open, so the gateway knows within a second when it leaves; Flower
    notices a silent node after a minute.

    Args:
        state: the server's state folder, with the file of an earlier process.
    """

    def __init__(self, state: Path):
        self._path = state / CONNECTED
        now = _now()
        # A gateway that was killed has left nodes as connected.
        self._lines = {
            node: Line(False, now) if line.connected else line
            for node, line in connected_nodes(state).items()
        }
        self._changed = bool(self._lines)

    def save(self, nodes: Collection[int]) -> None:
        """Write the file if other nodes are connected than before.

        Args:
            nodes: ids of all nodes that are connected now.

        Raises:
            OSError: the file cannot be written.
        """
        for node in nodes:
            if not (node in self._lines and self._lines[node].connected):
                self._lines[node], self._changed = Line(True, _now()), True
        for node, line in self._lines.items():
            if line.connected and node not in nodes:
                self._lines[node], self._changed = Line(False, _now()), True
        if not self._changed:
            return
        content = {str(node): [line.connected, line.since] for node, line in self._lines.items()}
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, self._path)
        self._changed = False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
