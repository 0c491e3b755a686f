"""Whether a server is well: the questions behind /health, the metrics and the status."""

from __future__ import annotations

import http.client
import json
from typing import Any

from server.remote.connection import Connection, secure_line

_PATIENCE = 3.0  # seconds
_LONGEST = 1 << 16  # bytes of an answer


def superlink_answers(connection: Connection) -> bool:
    """Return whether a SuperLink with a certificate of our CA answers at the control address."""
    return _ask(connection.control, connection, _PATIENCE)[0] == http.client.OK


def ask_health(connection: Connection) -> dict[str, Any]:
    """Return what /health of the operations endpoint says; empty where nothing answers.

    ``{"superlink": bool, "children": {name: {"pid": int or null, "restarts": int}}}``; cheap, and
    enough for a probe that asks every minute.
    """
    _, body = _ask(connection.operations, connection, 2 * _PATIENCE)  # it asks the SuperLink
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ask(address: str, connection: Connection, patience: float) -> tuple[int, bytes]:
    """Return status and body of ``GET /health``; 0 where nobody of our CA's answers."""
    try:
        line = secure_line(address, connection.ca, patience)
        try:
            line.request("GET", "/health")
            answer = line.getresponse()
            return answer.status, answer.read(_LONGEST)
        finally:
            line.close()
    except (OSError, http.client.HTTPException):  # ssl.SSLError is an OSError
        return 0, b""
