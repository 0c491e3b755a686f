"""A TCP relay on loopback that counts bytes, and can stall or cut its connections."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

_PIECE = 1 << 16


class Relay:
    """Pass connections on to a port of this machine while the context is open.

    Attributes:
        port: where the relay listens on loopback.
        up: bytes of TCP payload sent to the target.
        down: bytes of TCP payload sent back.
        accepted: number of connections.
    """

    def __init__(self, target: int):
        self._target = target
        self.port = self.up = self.down = self.accepted = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def stall(self) -> None:
        """Stop passing bytes on, without closing a connection."""
        self._loop.call_soon_threadsafe(self._moving.clear)

    def resume(self) -> None:
        """Pass bytes on again."""
        self._loop.call_soon_threadsafe(self._moving.set)

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""

        def close() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(close)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        ways = [(reader, far_writer, "up"), (far_reader, writer, "down")]
        tasks = [asyncio.create_task(self._pass(*way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the relay ends
        finally:
            for task in tasks:
                task.cancel()
            self._writers -= both
            for each in both:
                each.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> None:
        try:
            while data := await reader.read(_PIECE):
                await self._moving.wait()
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
