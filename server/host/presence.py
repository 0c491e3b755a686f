"""Which nodes are there, and when the others were last: the same for the status and the metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fedpeft.errors import UserError
from server.remote.connection import Connection
from server.remote.flwr_cli import run_flwr

ONLINE = "online"  # Flower's word; it takes a minute to miss a node that says nothing
_FRESH = 60.0  # seconds that an answer is used for: each question is a process of about 2 s


def flower_nodes(connection: Connection) -> dict[int, dict[str, Any]]:
    """Return what Flower says of each node it knows, by node id.

    Raises:
        UserError: the SuperLink does not answer, or refuses.
    """
    answer = run_flwr(["supernode", "list"], connection)
    return {int(node["node-id"]): node for node in answer["nodes"]}


def last_seen(said: Mapping[str, Any], trained: str) -> str:
    """Return when a node was last there, ISO 8601 in UTC; "" if it never was.

    Args:
        said: what Flower says of it; empty where the SuperLink does not answer.
        trained: when its update was last taken in a run, or "".

    Returns:
        Now while it is online, else when it left or last trained, whichever is later.
    """
    if said.get("status") == ONLINE:
        return datetime.now(UTC).isoformat(timespec="milliseconds")
    return max(trained, _time(said.get("offline-at")))


class Presence:
    """What Flower last said of the nodes; asked again in the background, by whoever wants it."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._said: dict[int, dict[str, Any]] = {}
        self._at = float("-inf")
        self._asking = threading.Lock()

    def known(self) -> dict[int, dict[str, Any]]:
        """Return the last answer, by node id; {} before the first, or where it is too old."""
        age = time.monotonic() - self._at
        if age > _FRESH and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, daemon=True, name="presence").start()
        return self._said if age < 3 * _FRESH else {}

    def _ask(self) -> None:
        try:
            self._said, self._at = flower_nodes(self.connection), time.monotonic()
        except (UserError, ValueError, KeyError):  # nobody knows; asked again next time
            self._said = {}
        finally:
            self._asking.release()


def _time(said: str | None) -> str:
    """Return a time of Flower's (``2026-11-21 15:44:06Z``) in ISO 8601, "" if it is none."""
    try:
        return datetime.fromisoformat(said or "").isoformat(timespec="seconds")
    except ValueError:
        return ""
