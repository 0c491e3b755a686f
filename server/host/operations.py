"""The operations endpoint: health, metrics and the files of the runs, over HTTPS on loopback.

``/health`` and ``/metrics`` are open to this machine; the runs ask for the token of
``connection.toml``. From other machines one comes here through a tunnel (``ssh -L``) only. It
shows the server's certificate, so that nobody gives the token to another program that listens
here while the server is down, or at a tunnel's other end.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import socket
import ssl
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from fedpeft.processes import Supervisor
from server.deployed import PLAIN_NAME, RUNS
from server.host.health import superlink_answers
from server.host.metrics import CONTENT_TYPE, Metrics
from server.host.served import (
    NotServed,
    entries_of,
    opened_file,
    opened_folder,
    pieces,
    served_files,
)
from server.host.state import ServerState
from server.remote.connection import Connection
from server.remote.mirror import DIGEST, IN_USE
from server.runfolder import RunFolder

log = logging.getLogger(__name__)


class _Refused(Exception):
    """A request that is answered with a status and a reason in JSON."""

    def __init__(self, status: HTTPStatus, reason: str):
        super().__init__(reason)
        self.status = status


def serve(state: ServerState, supervisor: Supervisor) -> ThreadingHTTPServer:
    """Return the endpoint, bound to 127.0.0.1; the caller runs its ``serve_forever``.

    Args:
        state: of the server; its ports, connection and runs.
        supervisor: of the server's processes, for their health and restarts.

    Raises:
        OSError: the port is taken.
    """
    return _Endpoint(state, supervisor)


class _Endpoint(ThreadingHTTPServer):
    daemon_threads = True  # a slow download must not hold up the end

    def __init__(self, state: ServerState, supervisor: Supervisor):
        self.runs = state.path / RUNS
        self.connection: Connection = state.connection()
        self.supervisor = supervisor
        self.metrics = Metrics(state.path, self.connection, supervisor)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(state.certificate, state.key)
        super().__init__(("127.0.0.1", state.ports["operations"]), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its own thread shakes hands, at the first byte it reads."""
        line, address = super().get_request()
        secure = self.tls.wrap_socket(line, server_side=True, do_handshake_on_connect=False)
        return secure, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what the standard library would print; readers that go away are no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("operations: a request could not be answered")


class _Handler(BaseHTTPRequestHandler):
    server: _Endpoint
    server_version, sys_version = "fedpeft", ""
    timeout = 30  # seconds without a byte

    def do_GET(self) -> None:
        """Answer a request."""
        try:
            self._check_host()
            self._route()
        except NotServed as missing:
            self._send_json({"error": str(missing)}, HTTPStatus.NOT_FOUND)
        except _Refused as refused:
            body = json.dumps({"error": str(refused)}).encode()
            extra = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            self._send(refused.status, "application/json", body, extra)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: scrapes come every few seconds, and paths may hold anything."""

    def _check_host(self) -> None:
        """Refuse pages of the web that had their name resolve to loopback (DNS rebinding)."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise _Refused(HTTPStatus.FORBIDDEN, "the Host header names no loopback address")

    def _route(self) -> None:
        url = urlsplit(self.path)
        match [unquote(part) for part in url.path.split("/")[1:]]:
            case ["health"]:
                self._health()
            case ["metrics"]:
                self._send(HTTPStatus.OK, CONTENT_TYPE, self.server.metrics.text())
            case ["runs", *rest] if len(rest) <= 2:
                self._check_token()
                if not all(PLAIN_NAME.fullmatch(name) for name in rest):
                    raise _Refused(HTTPStatus.NOT_FOUND, "no such run or file")
                self._runs(rest, url.query)
            case _:
                raise _Refused(HTTPStatus.NOT_FOUND, "only /health, /metrics and /runs are here")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.server.connection.token}".encode()):
            log.warning("operations: refused a request for runs without the right token")
            raise _Refused(HTTPStatus.UNAUTHORIZED, "the token of connection.toml is needed")

    def _health(self) -> None:
        answers = superlink_answers(self.server.connection)
        supervisor = self.server.supervisor
        children = {
            name: {"pid": supervisor.pids.get(name), "restarts": restarts}
            for name, restarts in supervisor.restarts.items()
        }
        well = answers and all(child["pid"] for child in children.values())
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        self._send_json({"superlink": answers, "children": children}, status)

    def _runs(self, rest: list[str], query: str) -> None:
        if not rest:
            folders = [entry for entry in entries_of(self.server.runs) if entry.is_dir()]
            self._send_json(
                sorted(each.name for each in folders if PLAIN_NAME.fullmatch(each.name))
            )
            return
        with opened_folder(self.server.runs / rest[0]) as folder:
            if len(rest) == 1:
                used = RunFolder(self.server.runs / rest[0]).in_use()
                self._send_json(served_files(folder), extra={IN_USE: "yes" if used else "no"})
            else:
                with opened_file(folder, rest[1]) as file:
                    self._send_file(file, query)

    def _send_file(self, file: BinaryIO, query: str) -> None:
        """Send an open file from the offset asked for to its present end, piece by piece."""
        size = os.fstat(file.fileno()).st_size
        asked = parse_qs(query).get("from", ["0"])[-1]
        if not (asked.isascii() and asked.isdigit() and len(asked) < 20):
            raise _Refused(HTTPStatus.BAD_REQUEST, "from: expected an offset in bytes")
        start = int(asked)
        if start > size:
            raise _Refused(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"it has {size} bytes")
        headers = {"Content-Length": str(size - start)}
        if start == 0:
            digest = hashlib.sha256()
            for piece in pieces(file, 0, size):
                digest.update(piece)
            headers[DIGEST] = digest.hexdigest()
        self._head(HTTPStatus.OK, "application/octet-stream", headers)
        for piece in pieces(file, start, size - start):
            self.wfile.write(piece)

    def _send_json(
        self,
        value: Any,
        status: HTTPStatus = HTTPStatus.OK,
        extra: dict[str, str] | None = None,
    ) -> None:
        self._send(status, "application/json", json.dumps(value).encode() + b"\n", extra)

    def _send(
        self, status: HTTPStatus, kind: str, body: bytes, extra: dict[str, str] | None = None
    ) -> None:
        self._head(status, kind, {"Content-Length": str(len(body)), **(extra or {})})
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Cache-Control": "no-store", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
