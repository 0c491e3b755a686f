"""One HTTP/2 connection over TLS, and the requests on it.

Headers that repeat cost one byte (HPACK, RFC 7541). Only the signature and the time of a request
change; they are never added to the compression's table, which they would soon fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import HeaderTuple, NeverIndexedHeaderTuple

_PIECE = 1 << 16  # bytes that are read at once
_WINDOW = 1 << 20  # bytes of responses that wait in memory, of a stream and of the connection
CHANGING = ("flwr-signature", "flwr-timestamp")

Headers = list[tuple[str, str]]


class Broken(ConnectionError):
    """The connection ended, or the server reset the request, before the response was complete."""


class Connection:
    """One HTTP/2 connection.

    Args:
        reader: of the bytes from the server.
        writer: of the bytes to it.
        authority: the server's address as HTTP names it.
        quiet: seconds without a byte from the server until a PING; as many again until the end.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        authority: str,
        quiet: float,
    ):
        self._reader, self._writer, self._authority = reader, writer, authority
        self._quiet = quiet
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._streams: dict[int, Stream] = {}
        #: Set, and replaced, when a window grows or a stream or the connection ends.
        self.moved = asyncio.Event()
        self._ended = ""  # the reason, once the connection has ended
        self._named: set[str] = set()  # changing headers whose names are in HPACK's table

    async def run(self) -> str:
        """Read from the connection until it ends; return the reason."""
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW, SettingCodes.ENABLE_PUSH: 0}
        self.h2.local_settings = Settings(client=True, initial_values=initial)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WINDOW - 65_535)  # the initial one of the protocol
        try:
            while not self._ended:
                # No drain: the line may be stalled, which only this loop detects.
                self._writer.write(self.h2.data_to_send())
                data = await self._read()
                if not data:
                    self._end("the server closed the connection")
                for event in self.h2.receive_data(data):
                    self._handle(event)
        except (OSError, ProtocolError) as error:
            self._end(f"the connection broke ({error})")
        finally:
            self._end("the tunnel ends")
            self._writer.transport.abort()
        return f"{self._authority}: {self._ended}"

    async def _read(self) -> bytes:
        """Return the next bytes; send a PING to a server that was quiet for long.

        Raises:
            Broken: no answer to the PING.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._quiet):
                return await self._reader.read(_PIECE)
        self.h2.ping(bytes(8))
        self._writer.write(self.h2.data_to_send())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._quiet):
                return await self._reader.read(_PIECE)
        raise Broken(f"nothing arrived for {2 * self._quiet:g} s")

    def _handle(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self._end("the server ended the connection")
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._wake()
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, ResponseReceived) and stream:
            stream.answered([(str(name), str(value)) for name, value in event.headers])
        elif isinstance(event, DataReceived):
            if stream:
                stream.pieces.put_nowait((event.data, event.flow_controlled_length))
            else:  # of a request that was given up
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded) and stream:
            stream.end("")
        elif isinstance(event, StreamReset) and stream:
            stream.end(f"the server reset the request (code {event.error_code})")
            self._wake()

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        for stream in self._streams.values():
            stream.end(self._ended)
        self._wake()

    def open(self, path: str, headers: Iterable[tuple[str, str]]) -> Stream:
        """Begin a POST request; its headers leave with the first bytes of its body.

        Raises:
            Broken: the connection has ended, or takes no more requests now.
        """
        if self._ended:
            raise Broken(self._ended)
        fields = [(":method", "POST"), (":scheme", "https"), (":authority", self._authority)]
        fields += [(":path", path), *headers]
        try:
            number = self.h2.get_next_available_stream_id()
            self.h2.send_headers(number, [self._field(*field) for field in fields])
        except ProtocolError as error:  # too many requests at once, or no numbers are left
            raise Broken(f"no further request is possible ({error})") from None
        stream = self._streams[number] = Stream(self, number)
        return stream

    def _field(self, name: str, value: str) -> HeaderTuple:
        # The first time, the name enters the table, so that later only the value is sent.
        if name in CHANGING and name in self._named:
            return NeverIndexedHeaderTuple(name, value)
        self._named.add(name)
        return HeaderTuple(name, value)

    def forget(self, number: int, reset: bool) -> None:
        """Drop a request; with ``reset``, tell the server that nobody waits for the response."""
        self._streams.pop(number, None)
        if self._ended:
            return
        if reset:
            with suppress(ProtocolError):
                self.h2.reset_stream(number, ErrorCodes.CANCEL)
        self._writer.write(self.h2.data_to_send())

    async def flush(self) -> None:
        """Send what waits, and wait while the line is full.

        Raises:
            OSError: the connection broke.
        """
        if data := self.h2.data_to_send():
            self._writer.write(data)  # one write: one TLS record, one packet
            await self._writer.drain()

    def _wake(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()


class Stream:
    """One request and its response."""

    def __init__(self, connection: Connection, number: int):
        self._connection, self._number = connection, number
        self.headers: asyncio.Future[Headers] = asyncio.Future()
        #: Data with the bytes that count against the window; None ends them.
        self.pieces: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
        self._ended, self._problem = False, ""
        self._peeked = b""

    def answered(self, headers: Headers) -> None:
        """Note the head of the response, unless nobody waits for it any more."""
        if not self.headers.done():
            self.headers.set_result(headers)

    def end(self, problem: str) -> None:
        """Note the end of the response: complete, or with a problem."""
        if self._ended:
            return
        self._ended, self._problem = True, problem
        self.pieces.put_nowait(None)
        if not self.headers.done():
            self.headers.set_exception(Broken(problem))
            self.headers.exception()  # not every request is waited for

    async def send(self, data: bytes, last: bool) -> None:
        """Send a part of the body as far as the server takes it; nothing after a reset.

        Raises:
            OSError: the connection broke.
        """
        h2, number = self._connection.h2, self._number
        while not self._problem:
            moved = self._connection.moved  # before the look at the window
            room = h2.local_flow_control_window(number)
            if data and room <= 0:
                await self._connection.flush()
                await moved.wait()
                continue
            size = min(len(data), room, h2.max_outbound_frame_size) if data else 0
            h2.send_data(number, data[:size], end_stream=last and size == len(data))
            data = data[size:]
            if not data:
                await self._connection.flush()
                return

    async def response(self) -> tuple[int, Headers]:
        """Return status and headers.

        Raises:
            Broken: see there.
        """
        headers = await self.headers
        status = next(value for name, value in headers if name == ":status")
        return int(status), [field for field in headers if not field[0].startswith(":")]

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end.

        Raises:
            Broken: see there.
        """
        if self._peeked:
            data, self._peeked = self._peeked, b""
            return data
        item = await self.pieces.get()
        if item is None:
            self.pieces.put_nowait(None)
            if self._problem:
                raise Broken(self._problem)
            return b""
        data, counted = item
        with suppress(ProtocolError):  # the stream has ended: no window is needed
            self._connection.h2.acknowledge_received_data(counted, self._number)
        await self._connection.flush()
        return data or await self.read()

    async def peek(self) -> bytes:
        """Return the next part of the body without taking it; empty at its end.

        Raises:
            Broken: see there.
        """
        self._peeked = self._peeked or await self.read()
        return self._peeked

    def close(self) -> None:
        """End the request; cancel it at the server if the response is incomplete."""
        while not self.pieces.empty():
            if item := self.pieces.get_nowait():
                with suppress(ProtocolError):
                    self._connection.h2.acknowledge_received_data(item[1], self._number)
        self._connection.forget(self._number, reset=not self._ended)
