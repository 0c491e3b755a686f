"""Run the endpoint with uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpeft.errors import RunFailed, UserError
from fedpeft.files import PRIVATE, USERS_TEXT, write_together
from fedpeft.hosting.tls import offer_quick_groups

_PATIENCE = 20.0  # seconds until a connection that sends no complete head is closed
_CONNECTIONS = 1000
_PER_ADDRESS = 500  # of them; a proxy in front is one address
_GRACE = 30  # seconds for accepted requests when the server stops
_TOKEN = 16  # shortest token that is accepted, in characters


def server_of(app: Starlette, certificate: Path | None, key: Path | None) -> uvicorn.Server:
    """Return a server of an application, over TLS if there is a certificate.

    Raises:
        OSError: certificate or key cannot be read.
    """
    config = uvicorn.Config(
        app,
        http=_Patient,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("Cache-Control", "no-store")],
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.load()
    if config.ssl is not None:
        offer_quick_groups(config.ssl)
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; accepted requests are answered before it returns.

    Raises:
        RunFailed: the server could not start.
    """
    with _quiet_signals():
        server.run([listener])
    if not server.started:
        raise RunFailed("the server could not start; the log above says why")


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Ignore the signals that uvicorn raises again after it has stopped because of them."""
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: Any) -> None:
    pass


def token_of(path: Path, option: str) -> str:
    """Return the token in a file; a missing file is created with a random token, mode 0600.

    Raises:
        UserError: the file may be read by other users, or holds no token.
    """
    try:
        if not path.exists():
            write_together({path: (f"{secrets.token_urlsafe(32)}\n".encode(), PRIVATE)})
        if path.stat().st_mode & 0o077:
            raise UserError(f"{option} {path}: other users may read it; chmod 600 it")
        token = path.read_text(encoding=USERS_TEXT).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not plain text"
        raise UserError(f"{option} {path}: cannot be used ({reason})") from None
    if len(token) < _TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"{option} {path}: expected one line of at least {_TOKEN} characters without spaces; "
            f"remove the file to get a random token"
        )
    return token


class _Patient(H11Protocol):
    """HTTP/1.1 that closes connections which do not send the head of a request in time.

    It also closes connections of an address that has too many.
    """

    _held: ClassVar[Counter[str]] = Counter()  # connections by address
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")  # None: it has reset the connection
        self._address = str(peer[0]) if peer else ""
        self._held[self._address] += 1
        if self._held[self._address] > _PER_ADDRESS:
            transport.abort()
        self.loop.call_later(_PATIENCE, self._check, None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held[self._address] -= 1
        if not self._held[self._address]:
            del self._held[self._address]

    def _check(self, before: Any) -> None:
        """Close the connection if it had no request since the last check; ``before`` is its last.

        While uvicorn's timer for kept connections runs, that timer closes it.
        """
        if self.transport.is_closing():
            return
        idle = self.cycle is before and (before is None or before.response_complete)
        if idle and self.timeout_keep_alive_task is None:
            self.transport.abort()
        else:
            self.loop.call_later(_PATIENCE, self._check, self.cycle)
