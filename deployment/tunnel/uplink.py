"""The connection of a node to the server's gateway, made again whenever it ends.

All requests of the node share it, so that the TLS handshake is paid once.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment.hosting.timing import Timing
from deployment.tunnel.connection import Broken, Connection
from deployment.tunnel.proxy import NotTheServer, Proxy, connected

_CONNECT = 15.0  # seconds for the connection and its TLS handshake
_STEADY = 10.0  # seconds of a connection after which the pauses are short again


@dataclass(frozen=True)
class Gateway:
    """The server's address, the certificate of the authority that signed the server's, a proxy."""

    host: str
    port: int
    ca: Path
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The address as HTTP names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Uplink:
    """The connection to the gateway, made again whenever it ends.

    Args:
        gateway: where to connect.
        report: called with "" when a connection is made, and with the problem when there is none;
            not again for the same problem.
        timing: pauses between attempts, and the limit of the server's silence.
    """

    def __init__(self, gateway: Gateway, report: Callable[[str], None], timing: Timing):
        self._gateway, self._report, self._timing = gateway, report, timing
        self._connected: asyncio.Future[Connection] | None = None

    async def keep_connected(self) -> None:
        """Connect, and connect again after each end, until cancelled."""
        clock, failures, reported = asyncio.get_running_loop().time, 0, ""
        self._connected = asyncio.Future()
        while True:
            begun = clock()
            try:
                connection = await _connect(self._gateway, self._timing.quiet)
            except OSError as error:
                problem = _problem(error, self._gateway)
            else:
                self._report(reported := "")
                self._connected.set_result(connection)
                try:
                    problem = await connection.run()
                finally:
                    self._connected = asyncio.Future()
            if problem != reported:
                self._report(reported := problem)
            failures = 0 if clock() - begun > _STEADY else failures + 1
            # Many nodes lose the same gateway at the same moment.
            spread, pauses = random.uniform(0.5, 1), self._timing.reconnects
            await asyncio.sleep(spread * pauses[min(failures, len(pauses) - 1)])

    async def connection(self, patience: float) -> Connection:
        """Return the connection; wait for it at most ``patience`` seconds.

        Raises:
            Broken: no connection could be made in that time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._connected is None:  # keep_connected has not started yet
                    await asyncio.sleep(0)
                return await asyncio.shield(self._connected)
        raise Broken("no connection to the server")


async def _connect(gateway: Gateway, quiet: float) -> Connection:
    """Return a connection whose TLS handshake is done; see ``Connection`` for ``quiet``.

    Raises:
        OSError: nobody answers, the certificate is refused, or the server speaks no HTTP/2.
    """
    context = ssl.create_default_context(cafile=gateway.ca)
    context.set_alpn_protocols(["h2"])
    async with asyncio.timeout(_CONNECT):
        where: dict[str, Any] = {"host": gateway.host, "port": gateway.port}
        if gateway.proxy:
            line = await asyncio.to_thread(
                connected, gateway.proxy, gateway.host, gateway.port, _CONNECT
            )
            line.setblocking(False)
            where = {"sock": line}
        reader, writer = await asyncio.open_connection(
            **where, ssl=context, server_hostname=gateway.host
        )
    if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
        writer.transport.abort()
        raise NotTheServer("the program that answers there does not speak HTTP/2")
    return Connection(reader, writer, gateway.authority, quiet)


def _problem(error: OSError, gateway: Gateway) -> str:
    name = gateway.authority
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        return f"{name}: its certificate is refused: {reason}; is {gateway.ca} the right CA?"
    if isinstance(error, ssl.SSLError):
        return f"{name}: the TLS handshake failed ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return f"{name}: no server answers (timed out)"
    if isinstance(error, NotTheServer):
        return f"{name}: {error}"
    return f"{name}: no server answers ({error.strerror or error or 'the connection was closed'})"
