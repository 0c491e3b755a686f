"""One request and its response, as the handler sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from deployment.gateway.limits import Limits

Headers = list[tuple[bytes, bytes]]


class BodyTooSlow(Exception):
    """A body arrives too slowly, or not at all."""


class BodyTooLarge(Exception):
    """A body is larger than the limit."""


class Disconnected(Exception):
    """The client went away."""


@dataclass
class Waiting:
    """Bytes of bodies that wait for the SuperLink, of all connections together."""

    bytes: int = 0


class Body:
    """The body of a request, which arrives in pieces.

    Args:
        limits: for its size and its speed.
        waiting: the count of waiting bytes to add to.
        taken: called with the size of each piece that the handler takes, so that the client may
            send more.
    """

    def __init__(self, limits: Limits, waiting: Waiting, taken: Callable[[int], None]):
        self._limits, self._waiting, self._taken = limits, waiting, taken
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._changed = asyncio.Event()
        self._ended = self._broken = False
        self._size = 0
        self._start: float | None = None  # time of the event loop

    def add(self, piece: bytes, cost: int) -> None:
        """Append a piece; ``cost`` is what ``taken`` gets when the handler takes it."""
        self._pieces.append((piece, cost))
        self._waiting.bytes += len(piece)
        self._changed.set()

    def end(self) -> None:
        """Mark the body as complete."""
        self._ended = True
        self._changed.set()

    @property
    def complete(self) -> bool:
        """Whether the client has sent it all."""
        return self._ended

    def drop(self) -> None:
        """Forget the rest: the handler does not read it, or the client went away."""
        self._broken = not self._ended
        for piece, _ in self._pieces:
            self._waiting.bytes -= len(piece)
        self._pieces.clear()
        self._changed.set()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body.

        Raises:
            BodyTooSlow: a piece took too long, or the body is too slow on average.
            BodyTooLarge: it exceeds the limit.
            Disconnected: the client went away.
        """
        clock = asyncio.get_running_loop().time
        self._start = clock() if self._start is None else self._start
        while True:
            while self._pieces:
                piece, cost = self._pieces.popleft()
                self._waiting.bytes -= len(piece)
                self._size += len(piece)
                if self._size > self._limits.body:
                    raise BodyTooLarge
                self._taken(cost)
                yield piece
            if self._broken:
                raise Disconnected
            if self._ended:
                return
            enough = self._size / self._limits.slowest
            if clock() - self._start > self._limits.piece + enough:
                raise BodyTooSlow
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self._limits.piece)
            except TimeoutError:
                raise BodyTooSlow from None

    async def peek(self, size: int) -> bytes:
        """Return at least the first ``size`` bytes, or the whole body, without consuming them.

        Raises:
            BodyTooSlow: and others, as ``pieces``.
        """
        content = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) >= size:
                    break
        if content:
            self._pieces.appendleft((bytes(content), 0))
            self._waiting.bytes += len(content)
            self._size = 0
        return bytes(content)

    async def all(self, largest: int) -> bytes:
        """Return the whole body, at most ``largest`` bytes of it.

        Raises:
            BodyTooLarge: it is larger; and as ``pieces``.
        """
        content = bytearray()
        async for piece in self.pieces():
            content += piece
            if len(content) > largest:
                raise BodyTooLarge
        return bytes(content)


class Answer(Protocol):
    """The client's side of a response.

    Attributes:
        status: of the response; 0 before its head is sent.
    """

    status: int

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body; waits while the client takes none."""

    async def end(self) -> None:
        """End the response."""


@dataclass
class Exchange:
    """A request and the way back to its sender.

    Attributes:
        method: of the request.
        path: the requested address exactly as sent, decoded as Latin-1.
        headers: values by lowercase name.
        length: the announced size of the body; None if it is not known.
        body: of the request.
        answer: the way back.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    length: int | None
    body: Body
    answer: Answer

    async def respond(self, content: bytes) -> None:
        """Answer with a message of Protocol Buffers."""
        length = (b"content-length", b"%d" % len(content))
        await self.answer.start(200, [(b"content-type", b"application/protobuf"), length])
        if content:
            await self.answer.send(content)
        await self.answer.end()
