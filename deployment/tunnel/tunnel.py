"""The node's way to the server: requests of the SuperNode, sent over one HTTP/2 connection.

The SuperNode talks TLS to this process on loopback, with a certificate made at the start of the
node: Flower sends no signature without TLS, and a port on loopback could be taken by another user.
Requests of other users of this machine are refused. Those of this user are forwarded, and the
gateway checks their signatures. Headers are never logged: whoever has them can act as the node for
five minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import ssl
import sys
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import h11

from clients.folder import NodeFolder
from deployment.hosting.logs import start_log
from deployment.hosting.timing import Timing
from deployment.hosting.tls import offer_quick_groups
from deployment.tunnel.asking import PERIOD, note
from deployment.tunnel.connection import Broken, Headers, Stream
from deployment.tunnel.local import PIECE, Gone, Local
from deployment.tunnel.proxy import Proxy
from deployment.tunnel.uplink import Gateway, Uplink
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, write_together
from fedpeft.page.ports import LOOPBACK, user_at

LARGEST = 1 << 30  # bytes of a request's body
_PATH = re.compile(r"/v1/fleet/[a-z-]+")
PULL, HEARTBEAT = "/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat"
ACTIVATE = "/v1/fleet/activate-node"
_UNKNOWN_KEY = 412, b"is not registered"  # how the gateway answers it
# On 403 (the run has ended) Flower 1.41's SuperNode keeps a message that it is receiving. The node
# trains for it, but its reply leaves only with the next message. From then on each reply is one
# message late, and the server waits for it. After 410 (Gone) the SuperNode deletes the message.
RECEIVE = ("/v1/fleet/pull-object", "/v1/fleet/confirm-message-received")
_CONNECTIONS = 32  # of the SuperNode at once; it uses about four
_ANSWER = 60.0  # seconds for the start of a response, and for each further part
# After an empty pull the SuperNode sleeps for 3 s, in which a message would wait. An empty pull is
# therefore repeated with the same signature, which the server accepts for 300 s.
HOLD = 120.0
_HANDSHAKE = 10.0  # seconds for a TLS handshake on loopback
log = logging.getLogger("deployment.tunnel.tunnel")  # also where this module is __main__
Result = TypeVar("Result")


class Refused(Exception):
    """A request that has no response; the SuperNode gets the status instead."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A request of the SuperNode: its body is read only up to ``PIECE`` bytes."""

    path: str
    headers: Headers
    length: int  # bytes of the whole body
    body: bytes
    arrived: float  # time of the event loop

    @property
    def age(self) -> float:
        """Seconds since the request arrived, and since its signature."""
        return _now() - self.arrived

    @property
    def whole(self) -> bool:
        """Whether ``body`` is the whole body, so that the request can be repeated."""
        return len(self.body) == self.length


class Tunnel:
    """The proxy between the SuperNode and the server's gateway."""

    def __init__(self, uplink: Uplink, timing: Timing, folder: NodeFolder):
        self._uplink, self._timing, self._folder = uplink, timing, folder
        self._connections = self._asking = 0

    async def note_questions(self) -> None:
        """Keep for the supervisor that the SuperNode asks for work, until cancelled."""
        while True:
            if self._asking:
                note(self._folder)
            await asyncio.sleep(PERIOD)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection on loopback until it ends."""
        local = Local(reader, writer)
        self._connections += 1
        try:
            user = user_at(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
            if user is None:  # closed already, as by the supervisor's check
                return
            if user != os.geteuid():
                log.warning("refused a connection of user %s: expected this node's", user)
            elif self._connections <= _CONNECTIONS:
                while request := await local.request():
                    await self._answer(local, request)
        except (OSError, h11.ProtocolError):  # the SuperNode connects again
            pass
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, local: Local, received: h11.Request) -> None:
        """Forward a request and send the response, or the reason why there is none."""
        try:
            request = await _read(local, received)
        except Refused as refusal:
            await local.refuse(refusal.status)
            return
        works = request.path != HEARTBEAT
        self._asking += works
        try:
            if works:
                note(self._folder)
            await self._pass(local, request)
        finally:
            self._asking -= works

    async def _pass(self, local: Local, request: Request) -> None:
        try:
            stream = await self._while_connected(local, self._forward(local, request))
        except Refused as refusal:
            await local.refuse(refusal.status)
            return
        try:
            status, headers = await stream.response()
            if request.path == ACTIVATE:
                refused = status == _UNKNOWN_KEY[0] and _UNKNOWN_KEY[1] in await stream.peek()
                _note_refusal(self._folder, refused)
            await local.start(status, headers)
            while piece := await _soon(stream.read()):
                await local.send(piece)
            await local.finish()
        finally:
            stream.close()

    async def _forward(self, local: Local, request: Request) -> Stream:
        """Return the stream of a request once its response has begun.

        A request that fails with its connection is repeated once, as Flower's client would do
        after a pause.

        Raises:
            Refused: there is no connection, or no response.
        """
        for last in (False, True):
            try:
                if request.path == PULL and request.whole:
                    return await self._pull(local, request)
                return await self._send(local, request)
            except Broken:
                if last or not request.whole:
                    break
            except TimeoutError:
                raise Refused(504) from None
        raise Refused(502)

    async def _pull(self, local: Local, request: Request) -> Stream:
        """Pull until there is a message; return an empty response only after a long time."""
        while True:
            begun = _now()
            stream = await self._send(local, request)
            with _closed_on_error(stream):
                status, _ = await stream.response()
                if status != 200 or request.age > HOLD or await stream.peek():
                    return stream
                stream.close()
                await asyncio.sleep(begun + self._timing.pulls - _now())

    async def _send(self, local: Local, request: Request) -> Stream:
        """Send a request and wait for the start of its response; return its stream."""
        beats = request.path == HEARTBEAT
        patience = self._timing.beat if beats else self._timing.connection
        try:
            connection = await self._uplink.connection(patience)
        except Broken:
            raise Refused(503) from None
        stream = connection.open(request.path, request.headers)
        with _closed_on_error(stream):
            await stream.send(request.body, last=request.whole)
            left = request.length - len(request.body)
            while left:
                piece = await local.body()
                left -= len(piece)
                await stream.send(piece, last=not left)
            if not request.whole:
                await local.body()  # its end
            status, _ = await _soon(stream.response())
            if status == 401 and request.age > self._timing.signature:
                raise Refused(503)
            if status == 403 and request.path in RECEIVE:  # or the SuperNode keeps the message
                raise Refused(410)
        return stream

    async def _while_connected(self, local: Local, work: Coroutine[None, None, Stream]) -> Stream:
        """Return the result of ``work``; keep the SuperNode waiting, and stop when it disconnects.

        It gives up after 30 s without a byte. Over a slow line a response may take longer, so it
        gets interim responses (102 Processing) in the meantime.

        Raises:
            Gone: the SuperNode disconnected.
        """
        tasks = task, gone = asyncio.create_task(work), asyncio.create_task(local.gone())
        pause = self._timing.interim
        try:
            while not (await asyncio.wait(tasks, timeout=pause, return_when="FIRST_COMPLETED"))[0]:
                await local.interim()
            if not task.done():
                raise Gone("the SuperNode disconnected")
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.wait(tasks)


@contextmanager
def _closed_on_error(stream: Stream) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stream.close()
        raise


async def _soon(waiting: Awaitable[Result]) -> Result:
    """Return what is waited for.

    Raises:
        TimeoutError: it did not come in time.
    """
    async with asyncio.timeout(_ANSWER):
        return await waiting


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _read(local: Local, received: h11.Request) -> Request:
    """Check a request and read the start of its body.

    Raises:
        Refused: it is not one of a SuperNode, or too large.
    """
    path = received.target.decode("latin-1")
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in received.headers]
    length = dict(fields).get("content-length", "")
    if received.method != b"POST" or not _PATH.fullmatch(path):
        raise Refused(403)
    if not length.isdecimal():
        raise Refused(411)
    if int(length) > LARGEST:
        raise Refused(413)
    kept = [field for field in fields if field[0].startswith("flwr-") or field[0] == "content-type"]
    body = bytearray()
    while len(body) < min(int(length), PIECE):
        body += await local.body()
    request = Request(path, kept, int(length), bytes(body), _now())
    if request.whole:
        await local.body()  # its end
    return request


async def serve(state: Path, port: int, gateway: Gateway) -> None:
    """Serve the SuperNode until this process is asked to end.

    Raises:
        OSError: the port is taken.
        UserError: the file with the waits of the node is damaged.
    """
    folder, timing = NodeFolder(state), Timing.read(state)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.runtime / "server.crt", folder.runtime / "server.key")
    offer_quick_groups(context)
    uplink = Uplink(gateway, partial(_report, folder.tunnel), timing)
    tunnel = Tunnel(uplink, timing, folder)
    server = await asyncio.start_server(
        tunnel.serve, LOOPBACK, port, ssl=context, ssl_handshake_timeout=_HANDSHAKE
    )
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    tasks = [
        asyncio.create_task(work)
        for work in (uplink.keep_connected(), tunnel.note_questions(), stopped.wait())
    ]
    await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    failed = [task for task in tasks if not task.cancelled() and task.exception()]
    if failed:
        failed[0].result()


def _report(path: Path, problem: str) -> None:
    """Log a change of the connection, and keep it for ``fedpeft node status``."""
    if problem:
        log.warning("%s; trying again", problem)
    else:
        log.info("connected to the server")
    since = datetime.now(UTC).isoformat(timespec="seconds")
    content = json.dumps({"connected": not problem, "since": since, "problem": problem})
    with suppress(OSError):  # a full disk must not end the connection
        write_together({path: (content.encode(), PRIVATE)}, replace=True)


def _note_refusal(folder: NodeFolder, refused: bool) -> None:
    """Keep whether the server knows this node's key, for the supervisor."""
    if not refused:
        folder.unknown_key.unlink(missing_ok=True)
    elif not folder.unknown_key.exists():
        write_together({folder.unknown_key: (b"", PRIVATE)})


def main() -> None:
    """Run ``python -m deployment.tunnel.tunnel STATE PORT HOST PORT CA [PROXY PORT [LOGIN]]``."""
    state, port, host, gateway_port, ca, *way = sys.argv[1:]
    proxy = Proxy(way[0], int(way[1]), Path(way[2]) if way[2:] else None) if way else None
    start_log(NodeFolder(Path(state)).log, "tunnel")
    try:
        asyncio.run(
            serve(Path(state), int(port), Gateway(host, int(gateway_port), Path(ca), proxy))
        )
    except UserError as error:
        log.error("%s", error)
        sys.exit(1)
    except OSError as error:
        log.error(
            "the tunnel cannot listen at %s:%s (%s)", LOOPBACK, port, os.strerror(error.errno or 0)
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
