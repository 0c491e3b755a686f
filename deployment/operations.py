"""The operations endpoint: health, metrics and the files of the runs, over HTTPS on loopback.

``/health`` and ``/metrics`` are open to this machine. The runs require the token of
``connection.toml``, and the page below ``/watch/`` one that follows from it. Other machines reach
the endpoint only through a tunnel (``ssh -L``). It shows the server's certificate, so that no
client sends the token to another program that listens on the port while the server is down, or at
the other end of a tunnel.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from deployment.hosting.processes import Supervisor
from deployment.hosting.tls import offer_quick_groups
from deployment.operator.mirror import DIGEST, IN_USE
from deployment.operator.page import PATH
from deployment.pages.server.source import server_pages
from deployment.server.folder import ServerFolder
from deployment.server.health import superlink_answers
from deployment.server.metrics import CONTENT_TYPE, Metrics
from deployment.server.served import opened_file, opened_folder, pieces, run_names, served_files
from fedpeft.page.http import LoopbackHost, bears, json_error, json_response
from fedpeft.runs.folder import RunFolder
from server.deployed import RUNS

log = logging.getLogger(__name__)
_PATIENCE = 30.0  # seconds until a connection without a request is closed


@contextmanager
def operations(state: ServerFolder, supervisor: Supervisor) -> Iterator[None]:
    """Serve the endpoint at 127.0.0.1 from a thread while the context is open.

    Args:
        state: the server's folder: ports, keys, connection and runs.
        supervisor: of the server's processes, for their health and restarts.

    Raises:
        OSError: the port is taken.
    """
    servers: list[_Server] = []
    config = uvicorn.Config(
        operations_app(state, supervisor, lambda: servers[0].should_exit),
        http=_OneRequest,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,  # a scrape every few seconds; paths may hold anything
        proxy_headers=False,
        server_header=False,
        headers=[("Connection", "close"), ("Cache-Control", "no-store")],
        timeout_graceful_shutdown=1,
        ssl_certfile=state.certificate,
        ssl_keyfile=state.key,
    )
    config.load()  # in this thread, so that the caller gets the error
    assert config.ssl is not None  # for mypy: there is a certificate
    offer_quick_groups(config.ssl)
    servers.append(server := _Server(config))
    listener = socket.create_server(("127.0.0.1", state.ports["operations"]))
    # asyncio sets it only on sockets made with a protocol; without it, an answer takes 40 ms more.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True, name="operations")
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def operations_app(
    state: ServerFolder, supervisor: Supervisor, stopping: Callable[[], bool]
) -> Starlette:
    """Return the endpoint as an ASGI application; ``stopping`` is whether the server ends."""
    endpoint = _Endpoint(state, supervisor)
    pages = server_pages(state, supervisor, endpoint.presence, stopping)
    app = Starlette(
        routes=[
            Route("/health", endpoint.health),
            Route("/metrics", endpoint.metrics),
            Route("/runs", endpoint.runs),
            Route("/runs/{run}", endpoint.files),
            Route("/runs/{run}/{file}", endpoint.file),
            Mount(PATH.rstrip("/"), pages),
        ],
        middleware=[Middleware(LoopbackHost)],
        exception_handlers={HTTPException: json_error},
    )
    app.router.redirect_slashes = False
    return app


class _Server(uvicorn.Server):
    """A server that aborts open downloads when it shuts down."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


class _OneRequest(H11Protocol):
    """HTTP/1.1 that closes connections which do not send the head of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_PATIENCE, self._end_silence)

    def _end_silence(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class _Endpoint:
    """The answers. Starlette calls these methods in threads, so they may block."""

    def __init__(self, state: ServerFolder, supervisor: Supervisor):
        self._runs = state.path / RUNS
        self._connection = state.connection()
        self._supervisor = supervisor
        self._metrics = Metrics(state.path, self._connection, supervisor)
        self.presence = self._metrics.presence

    def health(self, request: Request) -> Response:
        """Return the state of the processes: 200 if all answer and the SuperLink does, or 503."""
        up, children = superlink_answers(self._connection), self._supervisor.children()
        healthy = up and all(child["answers"] for child in children.values())
        return json_response({"superlink": up, "children": children}, 200 if healthy else 503)

    def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def runs(self, request: Request) -> Response:
        """Return the names of the runs."""
        self._check_token(request)
        return json_response(run_names(self._runs))

    def files(self, request: Request) -> Response:
        """Return the files of a run with their sizes, and whether a process uses its folder."""
        self._check_token(request)
        name = request.path_params["run"]
        with opened_folder(self._runs, name) as folder:
            used = RunFolder(self._runs / name).in_use()
            return json_response(served_files(folder), headers={IN_USE: "yes" if used else "no"})

    def file(self, request: Request) -> Response:
        """Return a file of a run from the offset ``?from=`` to its present end, in pieces."""
        self._check_token(request)
        start = _offset(request)
        with ExitStack() as stack:
            folder = stack.enter_context(opened_folder(self._runs, request.path_params["run"]))
            file = stack.enter_context(opened_file(folder, request.path_params["file"]))
            size = os.fstat(file.fileno()).st_size
            if start > size:
                raise HTTPException(416, f"it has {size} bytes")
            headers = {"Content-Length": str(size - start)}
            if start == 0:
                digest = hashlib.sha256()
                for piece in pieces(file, 0, size):
                    digest.update(piece)
                headers[DIGEST] = digest.hexdigest()
            return _FileResponse(pieces(file, start, size - start), headers, stack.pop_all())

    def _check_token(self, request: Request) -> None:
        if not bears(request.headers, self._connection.token):
            log.warning("operations: refused a request for runs without the right token")
            raise HTTPException(
                401, "the token of connection.toml is needed", {"WWW-Authenticate": "Bearer"}
            )


class _FileResponse(StreamingResponse):
    """A response that closes its files, even if the client disconnects."""

    def __init__(self, content: Iterator[bytes], headers: Mapping[str, str], files: ExitStack):
        super().__init__(content, headers=headers, media_type="application/octet-stream")
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._files:
            await super().__call__(scope, receive, send)


def _offset(request: Request) -> int:
    text = request.query_params.get("from", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HTTPException(400, "from: expected an offset in bytes")
    return int(text)
