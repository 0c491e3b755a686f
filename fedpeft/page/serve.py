"""Serve the pages of a source over HTTP until the process is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from fedpeft.page.app import Source, page_app
from fedpeft.page.guard import TOKEN, Access
from fedpeft.page.hosts import is_loopback
from fedpeft.page.http import listener

LOOPBACK = "127.0.0.1"


def serve_pages(
    source: Source,
    host: str,
    port: int,
    token: bool,
    command: str,
    ready: Callable[[str], object],
) -> None:
    """Serve the pages of a source; nothing can be changed through them.

    Args:
        source: of the data.
        host: address to listen at; any but loopback needs a token.
        port: 0 = any free one.
        token: whether a token is needed at loopback, too.
        command: the command that serves the pages, for messages.
        ready: receives the address, with the token.

    Raises:
        UserError: the address is not available.
    """
    sock = listener(host, port)
    number = sock.getsockname()[1]
    outside = not is_loopback(_in_url(host))
    access = Access(
        token=secrets.token_urlsafe(24) if token or outside else "",
        names={host, socket.gethostname(), socket.getfqdn()} if outside else (),
        cookie=f"fedpeft-{number}",
        command=command,
    )
    servers: list[uvicorn.Server] = []
    config = uvicorn.Config(
        page_app(source, access, lambda: servers[0].should_exit),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # addresses may hold the token
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    servers.append(uvicorn.Server(config))
    ready(_address(host, number, access.token))
    servers[0].run(sockets=[sock])


def _address(host: str, port: int, token: str) -> str:
    name = socket.getfqdn() if host in ("0.0.0.0", "::") else _in_url(host)
    return f"http://{name}:{port}/{f'?{TOKEN}={token}' if token else ''}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
