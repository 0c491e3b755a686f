"""Presence of nodes: whether they are online and when they were last seen."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import run_flwr
from fedpeft.errors import UserError

ONLINE = "online"  # Flower's word; Flower notices a silent node after a minute
CONNECTED = "connected.json"  # in the state folder, written by the gateway
_FRESH = 60.0  # seconds until Flower is asked again: each question is a process of about 2 s


@dataclass(frozen=True)
class Line:
    """A node's line to the gateway: whether it is connected, and since when (ISO 8601, UTC)."""

    connected: bool
    since: str


def connected_nodes(state: Path) -> dict[int, Line]:
    """Return the line of each node that was ever connected, by node id; {} without a gateway."""
    try:
        content = json.loads((state / CONNECTED).read_text(encoding="utf-8"))
        return {int(node): Line(bool(on), str(since)) for node, (on, since) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def flower_nodes(connection: Connection) -> dict[int, dict[str, Any]]:
    """Return Flower's entry of each node it knows, by node id.

    Raises:
        UserError: the SuperLink does not answer or refuses.
    """
    answer = run_flwr(["supernode", "list"], connection)
    return {int(node["node-id"]): node for node in answer["nodes"]}


def last_seen(entry: Mapping[str, Any], trained: str) -> str:
    """Return the time at which a node was last online, ISO 8601 in UTC; "" if never.

    Args:
        entry: Flower's entry of the node; empty if the SuperLink does not answer.
        trained: when a run last accepted its update, or "".

    Returns:
        Now if the node is online, otherwise when it left or last trained, whichever is later.
    """
    if entry.get("status") == ONLINE:
        return datetime.now(UTC).isoformat(timespec="milliseconds")
    return max(trained, _time(entry.get("offline-at")))


class Presence:
    """A cache of Flower's entries of the nodes, refreshed in the background when it is read."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._entries: dict[int, dict[str, Any]] = {}
        self._at = float("-inf")
        self._asking = threading.Lock()

    def known(self) -> dict[int, dict[str, Any]]:
        """Return the last answer by node id; {} before the first answer or if it is too old."""
        age = time.monotonic() - self._at
        if age > _FRESH and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, daemon=True, name="presence").start()
        return self._entries if age < 3 * _FRESH else {}

    def _ask(self) -> None:
        try:
            self._entries, self._at = flower_nodes(self.connection), time.monotonic()
        except (UserError, ValueError, KeyError):  # unknown; asked again next time
            self._entries = {}
        finally:
            self._asking.release()


def _time(text: str | None) -> str:
    """Return Flower's time (``2026-11-21 15:44:06Z``) in ISO 8601, or "" for any other text."""
    try:
        return datetime.fromisoformat(text or "").isoformat(timespec="seconds")
    except ValueError:
        return ""
