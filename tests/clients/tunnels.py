"""A gateway for tests, which speaks HTTP/2, and real tunnels to it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from hypercorn.asyncio import serve
from hypercorn.config import Config
from workers import PATIENCE, eventually

from clients.folder import NodeFolder
from clients.node import make_certificate
from clients.proxy import Proxy
from fedpeft.hosting.keys import make_authority, make_server
from fedpeft.hosting.ports import LOOPBACK, free_port, speaks_tls
from fedpeft.hosting.timing import Timing

Answer = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
TIMING = replace(Timing().scaled(0.1), connection=PATIENCE)


async def echo(path: str, body: bytes) -> tuple[int, bytes]:
    """Answer with the body of the request."""
    return 200, body


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    version: str


@dataclass
class Gateway:
    """A server of HTTP/2 in a thread: it can be stopped and started again at the same port."""

    keys: Path
    answer: Answer = echo
    port: int = field(default_factory=free_port)
    received: list[Received] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  # paths of requests that were given up
    keep_alive: float = 75

    def start(self) -> None:
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        eventually(lambda: speaks_tls(LOOPBACK, self.port, self.keys / "ca.crt", "localhost"))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        config = Config()
        config.bind = [f"{LOOPBACK}:{self.port}", f"127.0.0.2:{self.port}"]
        config.certfile = str(self.keys / "server.crt")
        config.keyfile = str(self.keys / "server.key")
        config.keep_alive_timeout = self.keep_alive
        config.graceful_timeout = 0.1
        config.errorlog = None
        with suppress(ssl.SSLError):  # asyncio's, if a client sends while the server ends
            await serve(self._app, config, shutdown_trigger=self._stopped.wait)  # type: ignore[arg-type]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.received.append(Received(scope["path"], headers, body, scope["http_version"]))
        answering = asyncio.ensure_future(self.answer(scope["path"], body))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({answering, leaving}, return_when="FIRST_COMPLETED")
        leaving.cancel()
        if not answering.done():
            answering.cancel()
            self.cancelled.append(scope["path"])
            return
        status, content = answering.result()
        headers = [(b"content-type", b"application/protobuf")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


@contextmanager
def gateway(folder: Path, answer: Answer = echo) -> Iterator[Gateway]:
    """Run a gateway with a certificate for localhost; its authority is in ``folder``."""
    make_authority(folder / "keys")
    make_server(folder / "keys", [], folder / "keys")
    made = Gateway(folder / "keys", answer)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@dataclass
class Running:
    """A tunnel's process."""

    state: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def ca(self) -> Path:
        return NodeFolder(self.state).runtime / "ca.crt"

    def client(self) -> httpx.Client:
        """Return a client like that of the SuperNode."""
        verify = ssl.create_default_context(cafile=self.ca)
        return httpx.Client(
            base_url=f"https://{LOOPBACK}:{self.port}", verify=verify, timeout=PATIENCE
        )


@contextmanager
def tunnel(
    state: Path,
    port: int,
    ca: Path,
    host: str = "localhost",
    timing: Timing = TIMING,
    proxy: Proxy | None = None,
) -> Iterator[Running]:
    """Run a tunnel to a gateway at ``host:port``; its node's state folder is ``state``."""
    NodeFolder(state).prepare()
    timing.write(state)
    make_certificate(NodeFolder(state).runtime)
    own = free_port([port])
    command = [sys.executable, "-P", "-m", "clients.tunnel", str(state), str(own)]
    process = subprocess.Popen(
        [*command, host, str(port), str(ca), *(proxy.words() if proxy else [])]
    )
    running = Running(state, own, process)
    try:
        eventually(lambda: speaks_tls(LOOPBACK, own, running.ca, LOOPBACK))
        yield running
    finally:
        process.terminate()
        process.wait(PATIENCE)
