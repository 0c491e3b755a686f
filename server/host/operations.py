"""The operations endpoint: health, metrics and the files of the runs, over HTTP on loopback.

``/health`` and ``/metrics`` are open to this machine; the runs ask for the token of
``connection.toml``. From other machines one comes here through a tunnel (``ssh -L``) only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from fedpeft.processes import Supervisor
from server.deployed import PLAIN_NAME, RUNS
from server.host.health import superlink_answers
from server.host.metrics import CONTENT_TYPE, Metrics
from server.host.state import ServerState
from server.remote.connection import Connection
from server.remote.mirror import DIGEST

log = logging.getLogger(__name__)
_SERVED = (".json", ".jsonl", ".toml", ".safetensors")  # no ledgers, locks or pictures
_CHUNK = 1 << 16  # bytes


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
        super().__init__(("127.0.0.1", state.ports["operations"]), _Handler)

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
        status = HTTPStatus.OK if answers else HTTPStatus.SERVICE_UNAVAILABLE
        self._send_json({"superlink": answers, "children": children}, status)

    def _runs(self, rest: list[str], query: str) -> None:
        if not rest:
            folders = [entry for entry in _entries(self.server.runs) if entry.is_dir()]
            self._send_json(
                sorted(each.name for each in folders if PLAIN_NAME.fullmatch(each.name))
            )
            return
        with _opened_folder(self.server.runs / rest[0]) as folder:
            if len(rest) == 1:
                self._send_json(_files(folder))
            else:
                with _opened_file(folder, rest[1]) as file:
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
            for piece in _pieces(file, 0, size):
                digest.update(piece)
            headers[DIGEST] = digest.hexdigest()
        self._head(HTTPStatus.OK, "application/octet-stream", headers)
        for piece in _pieces(file, start, size - start):
            self.wfile.write(piece)

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "application/json", json.dumps(value).encode() + b"\n")

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


def _entries(folder: Path | int) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, symbolic links left out."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_symlink()]
    except FileNotFoundError:  # no run yet
        return []


def _files(folder: int) -> dict[str, int]:
    """Return the files that are served of an open folder, with their sizes in bytes."""
    found = {}
    for entry in sorted(_entries(folder), key=lambda each: each.name):
        if _is_served(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):  # replaced or dropped meanwhile
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
    return found


def _is_served(name: str) -> bool:
    return PLAIN_NAME.fullmatch(name) is not None and name.endswith(_SERVED)


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    """Open a run's folder, but no link to one; files are opened relative to it."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise _Refused(HTTPStatus.NOT_FOUND, "no such run") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened_file(folder: int, name: str) -> Iterator[BinaryIO]:
    """Open a regular file that lies directly in an open folder and is meant to be served."""
    missing = _Refused(HTTPStatus.NOT_FOUND, "no such file in this run")
    if not _is_served(name):
        raise missing
    try:  # not blocking: opening a named pipe would wait for its writer
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        raise missing from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise missing
    with open(handle, "rb") as file:
        yield file


def _pieces(file: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` bytes of a file from an offset; fewer if it has become shorter."""
    file.seek(start)
    while count > 0 and (piece := file.read(min(_CHUNK, count))):
        count -= len(piece)
        yield piece
