"""The bytes on the wire of each node: TCP payload at the gateway, TLS included."""

from __future__ import annotations

import json
import os
from pathlib import Path

from deployment.gateway.connection import Connection
from fedpeft.runs.records import Wire
from server.exchange.wire_bytes import STRANGERS, WIRE


class Counts:
    """Totals by node, in a file of the state folder.

    Args:
        state: the server's state folder, with the totals of earlier processes.
    """

    def __init__(self, state: Path):
        self._path = state / WIRE
        self._totals: dict[str, Wire] = {}
        self._changed = False
        try:
            for node, ways in json.loads(self._path.read_text(encoding="utf-8")).items():
                self._totals[node] = {"up": int(ways["up"]), "down": int(ways["down"])}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._totals = {}  # the first start, or damaged: the counts begin again

    def add(self, connection: Connection) -> None:
        """Add the bytes of a connection since the last call to the totals of its node."""
        up, down = connection.counted
        if (up, down) == (connection.up, connection.down):
            return
        connection.counted = connection.up, connection.down
        name = STRANGERS if connection.node is None else str(connection.node)
        total = self._totals.setdefault(name, {"up": 0, "down": 0})
        total["up"] += connection.up - up
        total["down"] += connection.down - down
        self._changed = True

    def save(self) -> None:
        """Write the totals if they have changed.

        Without fsync: after a loss of power only the counts of the last seconds may be missing.
        """
        if not self._changed:
            return
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(json.dumps(self._totals), encoding="utf-8")
        os.replace(temporary, self._path)
        self._changed = False
