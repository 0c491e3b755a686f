"""Whether the SuperLink answers: the one question behind /health, the metrics and the status."""

from __future__ import annotations

import http.client
import ssl

from server.remote.connection import Connection

_PATIENCE = 3.0  # seconds


def superlink_answers(connection: Connection) -> bool:
    """Return whether a SuperLink with a certificate of our CA answers at the control address."""
    host, _, port = connection.control.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=connection.ca)
        line = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=_PATIENCE, context=context
        )
        try:
            line.request("GET", "/health")
            return line.getresponse().status == http.client.OK
        finally:
            line.close()
    except (OSError, http.client.HTTPException):  # ssl.SSLError is an OSError
        return False
