"""Health checks of a running server: its SuperLink and its /health."""

from __future__ import annotations

import http.client
from typing import Any

from deployment.operator.connection import Connection, secure_line
from fedpeft.files import parse_object

_PATIENCE = 3.0  # seconds
_LONGEST = 1 << 16  # bytes of an answer that are read


def superlink_answers(connection: Connection) -> bool:
    """Return whether a SuperLink with a certificate of the server's CA answers."""
    return _ask(connection.control, connection, _PATIENCE)[0] == http.client.OK


def ask_health(connection: Connection) -> dict[str, Any]:
    """Return the answer of /health at the operations endpoint, or {} if nothing answers.

    It is ``{"superlink": bool, "children": {name: {"pid", "answers", "restarts"}}}``.
    """
    _, body = _ask(connection.operations, connection, 2 * _PATIENCE)  # it asks the SuperLink
    return parse_object(body)


def failing(health: dict[str, Any]) -> list[str]:
    """Return which processes do not answer; "server" if /health, whose answer this is, did not."""
    if not health:
        return ["server"]
    children = health.get("children", {}).items()
    # A server that was started by an earlier version says only whether they run.
    down = [name for name, child in children if not child.get("answers", child.get("pid"))]
    known = health.get("superlink") or "superlink" in down
    return down if known else ["superlink", *down]


def _ask(address: str, connection: Connection, patience: float) -> tuple[int, bytes]:
    """Return status and body of ``GET /health``; status 0 if no server of this CA answers."""
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
