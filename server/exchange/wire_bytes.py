"""The bytes on the wire of a deployment's nodes, as its gateway counts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedpeft.runs.records import Wire

WIRE = "wire.json"  # in the state folder, written by the gateway every half second
STRANGERS = "strangers"  # connections without a signature of a registered node


def read_wire(state: Path) -> dict[int, Wire]:
    """Return the bytes on the wire of each node since its registration, by node id.

    They are TCP payload: TLS and HTTP included, TCP and IP headers not. Without a count, for
    example before the gateway's first start, a node is missing.
    """
    try:
        totals = json.loads((state / WIRE).read_text(encoding="utf-8"))
        return {
            int(node): {"down": int(ways["down"]), "up": int(ways["up"])}
            for node, ways in totals.items()
            if node != STRANGERS
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


class WireMeter:
    """The bytes on the wire between one reading and the next.

    Args:
        state: the server's state folder; None in a simulation, which has no network.
    """

    def __init__(self, state: Path | None):
        self._state = state
        self._last = read_wire(state) if state else {}

    def since_last(self, nodes: Mapping[int, int]) -> dict[int, Wire] | None:
        """Return the bytes since the last call by client; None in a simulation.

        Args:
            nodes: client -> id of its node.
        """
        if self._state is None:
            return None
        before, self._last = self._last, read_wire(self._state)
        sent = {}
        for client, node in sorted(nodes.items()):
            last = before.get(node, {"down": 0, "up": 0})
            now = self._last.get(node, last)
            # Lower counts begin again: the gateway's file was damaged.
            sent[client] = Wire(
                down=max(0, now["down"] - last["down"]), up=max(0, now["up"] - last["up"])
            )
        return sent
