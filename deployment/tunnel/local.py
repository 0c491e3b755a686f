"""The tunnel's connection to the SuperNode: HTTP/1.1 requests, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import h11

PIECE = 1 << 16  # bytes that are read at once
_IDLE = 60.0  # seconds that the SuperNode may be quiet
_KEPT = ("content-type", "content-length", "retry-after")


class Gone(ConnectionError):
    """The SuperNode disconnected within a request."""


class Local:
    """A connection of the SuperNode."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER)
        self._read_whole = asyncio.Event()  # the current request

    async def request(self) -> h11.Request | None:
        """Return the next request, up to its body; None at the end of the connection.

        Raises:
            OSError: the SuperNode disconnected within a request, or was quiet for too long.
            h11.ProtocolError: it sent something that is not HTTP/1.1.
        """
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE:
            return None
        self._read_whole.clear()
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> bytes:
        """Return the next part of a request's body; empty at its end.

        Raises:
            OSError: see above.
            h11.ProtocolError: see above.
        """
        event = await self._event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self._read_whole.set()
            return b""
        raise Gone("the SuperNode disconnected within a request")

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(_IDLE):
                self._http.receive_data(await self._reader.read(PIECE))
        return event

    async def gone(self) -> None:
        """Wait until the SuperNode disconnects after a whole request."""
        await self._read_whole.wait()
        await self._reader.read(1)

    async def interim(self) -> None:
        """Send an interim response, to show that the request is being processed."""
        await self._write(h11.InformationalResponse(status_code=102, headers=[]))

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send status and headers of a response; only headers that Flower reads."""
        kept = [field for field in headers if field[0] in _KEPT or field[0].startswith("flwr-")]
        await self._write(h11.Response(status_code=status, headers=kept))

    async def send(self, piece: bytes) -> None:
        """Send a part of a response's body."""
        await self._write(h11.Data(data=piece))

    async def finish(self) -> None:
        """End a response."""
        await self._write(h11.EndOfMessage())

    async def refuse(self, status: int) -> None:
        """Send a response without a body, after which the connection ends."""
        await self.start(status, [("content-length", "0")])
        await self.finish()

    async def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
