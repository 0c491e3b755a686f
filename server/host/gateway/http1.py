"""HTTP/1.1 on one connection, by h11: one request at a time."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

import h11

from server.host.gateway.connection import Connection
from server.host.gateway.exchange import Body, Exchange, Headers

_BUFFERED = 1 << 16  # bytes of a body that wait for the handler before reading pauses


class Http1:
    """The requests of one connection.

    Beyond h11's checks, a head with folded lines or a Transfer-Encoding is refused: nodes send
    neither, and servers have disagreed about both.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._limits = connection.door.limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
        self._head = bytearray()  # of the next request, as far as received
        self._task: asyncio.Task[None] | None = None
        self._body: Body | None = None
        self._buffered = 0

    def received(self, data: bytes) -> None:
        """Handle decrypted bytes."""
        if self._task is None:
            if not self._head:
                self._connection.expect(self._limits.request)
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0 and len(self._head) <= self._limits.head:
                return
            if end < 0 or end > self._limits.head:
                return self._refuse(431, "the head of the request is too large")
            if re.search(rb"\n[ \t]|\r(?!\n)|(?<!\r)\n|\0", self._head[: end + 4]):
                return self._refuse(400, "not a valid HTTP request")
            data = bytes(self._head)
            self._head.clear()
        try:
            self._h11.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint if self._h11.our_state is h11.IDLE else 400
            self._refuse(status, "not a valid HTTP request")

    def lost(self) -> None:
        """Cancel the request."""
        if self._body is not None:
            self._body.drop()
        if self._task is not None:
            self._task.cancel()

    def _advance(self) -> None:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Request):
                self._start(event)
            elif isinstance(event, h11.Data):
                assert self._body is not None  # for mypy: a request comes before its data
                self._buffered += len(event.data)
                self._body.add(bytes(event.data), len(event.data))
                if self._buffered > _BUFFERED:
                    self._connection.pause_reading()
            elif isinstance(event, h11.EndOfMessage):
                assert self._body is not None
                self._body.end()
            else:  # NEED_DATA, PAUSED, ConnectionClosed
                if event is h11.PAUSED and len(self._h11.trailing_data[0]) > _BUFFERED:
                    self._connection.pause_reading()
                return

    def _start(self, request: h11.Request) -> None:
        headers = dict(request.headers)
        method, path = request.method.decode("latin-1"), request.target.decode("latin-1")
        if request.http_version not in (b"1.0", b"1.1"):
            return self._refuse(505, "not HTTP/1.1 or HTTP/2")
        if b"transfer-encoding" in headers:
            return self._refuse(400, "a body without Content-Length", method, path)
        length = int(headers.get(b"content-length", b"0"))
        self._connection.expect(None)
        self._buffered = 0
        self._body = Body(self._limits, self._connection.door.waiting, self._taken)
        exchange = Exchange(method, path, headers, length, self._body, _Answer(self))
        self._task = asyncio.create_task(self._handle(exchange))

    def _taken(self, size: int) -> None:
        self._buffered -= size
        if self._buffered <= _BUFFERED:
            self._connection.resume_reading()

    async def _handle(self, exchange: Exchange) -> None:
        try:
            await self._connection.door.handle(self._connection, exchange)
        except (ConnectionError, h11.LocalProtocolError):
            self._connection.abort()
        finally:
            exchange.body.drop()
        self._task = None
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return self._connection.close()
        self._h11.start_next_cycle()
        self._connection.resume_reading()
        verified = self._connection.node is not None
        self._connection.expect(self._limits.idle if verified else self._limits.request)
        rest, _ = self._h11.trailing_data
        if rest:  # the next request came early
            self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
            self.received(rest)

    def _refuse(self, status: int, reason: str, method: str = "", path: str = "") -> None:
        """Answer a request that cannot be handled, and close the connection."""
        connection = self._connection
        connection.door.refusals.log(connection.address, method, path, status, reason)
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self._task is None:
            phrase = HTTPStatus(status).phrase
            head = f"HTTP/1.1 {status} {phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            connection.write(head.encode())
        connection.close()


class _Answer:
    """The response to the current request."""

    def __init__(self, http: Http1):
        self._http, self._connection = http, http._connection

    async def start(self, status: int, headers: Headers) -> None:
        if self._http._h11.their_state is not h11.DONE:  # the rest of the body is not wanted
            headers = [*headers, (b"connection", b"close")]
        self._write(h11.Response(status_code=status, headers=headers))

    async def send(self, piece: bytes) -> None:
        self._write(h11.Data(data=piece))
        await self._connection.drained()

    async def end(self) -> None:
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Event) -> None:
        if data := self._http._h11.send(event):
            self._connection.write(data)
