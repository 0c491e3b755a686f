"""HTTP/2 on one connection, by h2: concurrent requests, each with a bounded window."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import SettingsFrame

from deployment.gateway.connection import Connection
from deployment.gateway.exchange import Body, Exchange, Headers

_WINDOW = 1 << 18  # bytes of a body that may wait; per round trip, so it bounds the speed
_CONNECTION_WINDOW = 1 << 20  # of all bodies of a connection together
_SPARE = 100  # streams beyond the limit, which are refused one by one


class Http2:
    """The requests of one connection.

    Whatever frames a client sends, their work is charged to it; see ``Door.working``.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._limits = connection.door.limits
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                # h2 would end the connection at the first stream too many.
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.streams + _SPARE,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: self._limits.head,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self._h2.decoder.max_header_list_size = self._limits.head  # h2 would wait for the client
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - 65_535)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bodies: dict[int, Body] = {}
        self._windows: dict[int, asyncio.Event] = {}
        self._flush()
        announced = {int(h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS): self._limits.streams}
        connection.write(SettingsFrame(0, settings=announced).serialize())

    def received(self, data: bytes) -> None:
        """Handle decrypted bytes."""
        try:
            for event in self._h2.receive_data(data):
                self._handle_event(event)
        except h2.exceptions.ProtocolError:  # also for header lists that are too large
            self._refuse("not a valid HTTP/2 request")
            return
        self._flush()

    def lost(self) -> None:
        """Cancel all requests."""
        for body in self._bodies.values():
            body.drop()
        for task in self._tasks.values():
            task.cancel()

    def _handle_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._start(event.stream_id, event.headers)
            case h2.events.DataReceived():
                self._add(event.stream_id, event.data, event.flow_controlled_length)
            case h2.events.StreamEnded():
                if body := self._bodies.get(event.stream_id):
                    body.end()
            case h2.events.StreamReset():
                if task := self._tasks.get(event.stream_id):
                    task.cancel()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for window in self._windows.values():
                    window.set()
            case h2.events.ConnectionTerminated():
                self._connection.close()

    def _start(self, stream: int, headers: Any) -> None:
        if len(self._tasks) >= self._limits.streams:
            return self._reset(stream, h2.errors.ErrorCodes.REFUSED_STREAM)
        values = dict(headers)
        pseudo = values.get(b":method", b""), values.get(b":path", b"")
        method, path = (value.decode("latin-1") for value in pseudo)
        self._connection.expect(None)
        self._windows[stream] = asyncio.Event()
        body = Body(
            self._limits, self._connection.door.waiting, lambda size: self._taken(stream, size)
        )
        self._bodies[stream] = body
        announced = values.get(b"content-length")
        length = int(announced) if announced is not None else None
        exchange = Exchange(method, path, values, length, body, _Answer(self, stream))
        task = self._tasks[stream] = asyncio.create_task(self._handle(stream, exchange))
        # Not in _handle: a stream reset at once cancels its task before that has begun.
        task.add_done_callback(lambda _: self._ended(stream))

    def _add(self, stream: int, data: bytes, cost: int) -> None:
        if body := self._bodies.get(stream):
            body.add(data, cost)
        else:  # nobody waits for it
            self._taken(stream, cost)

    def _taken(self, stream: int, size: int) -> None:
        if size and not self._connection.closing:
            with suppress(h2.exceptions.StreamClosedError):
                self._h2.acknowledge_received_data(size, stream)
            self._flush()

    async def _handle(self, stream: int, exchange: Exchange) -> None:
        try:
            await self._connection.door.handle(self._connection, exchange)
            # Answered early: a stranger may not send the rest. A reset would not keep it from that.
            # A node's is dropped as it arrives.
            if not exchange.body.complete and self._connection.node is None:
                self._leave()
        except (h2.exceptions.ProtocolError, ConnectionError):
            self._reset(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)

    def _ended(self, stream: int) -> None:
        self._bodies.pop(stream).drop()
        del self._tasks[stream], self._windows[stream]
        if not self._tasks:
            verified = self._connection.node is not None
            self._connection.expect(self._limits.idle if verified else self._limits.request)

    def _reset(self, stream: int, code: h2.errors.ErrorCodes) -> None:
        try:
            self._h2.reset_stream(stream, code)
        except h2.exceptions.ProtocolError:
            return  # the client has closed it
        self._flush()

    def _leave(self) -> None:
        """End the connection; the client may still read what was sent."""
        self._h2.close_connection()
        self._flush()
        self._connection.close()

    def _refuse(self, reason: str) -> None:
        if self._connection.closing:
            return
        self._connection.door.refusals.log(self._connection.address, "", "", 400, reason)
        self._flush()
        self._connection.close()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._connection.write(data)


class _Answer:
    """The response on one stream."""

    def __init__(self, http: Http2, stream: int):
        self._http, self._stream, self.status = http, stream, 0

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        self._http._h2.send_headers(self._stream, [(b":status", b"%d" % status), *headers])
        self._http._flush()

    async def send(self, piece: bytes) -> None:
        http, view = self._http, memoryview(piece)
        while view:
            size = min(
                http._h2.local_flow_control_window(self._stream),
                http._h2.max_outbound_frame_size,
                len(view),
            )
            if size <= 0:
                await self._window()
                continue
            http._h2.send_data(self._stream, bytes(view[:size]))
            view = view[size:]
            http._flush()
            await http._connection.drained()

    async def end(self) -> None:
        self._http._h2.end_stream(self._stream)
        self._http._flush()

    async def _window(self) -> None:
        """Wait until the client takes more."""
        window = self._http._windows[self._stream]
        window.clear()
        try:
            await asyncio.wait_for(window.wait(), self._http._limits.piece)
        except TimeoutError:
            raise ConnectionError("the client takes nothing") from None
