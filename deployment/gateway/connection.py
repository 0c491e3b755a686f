"""A connection of a client: TLS, the count of its bytes, and its time limits.

TLS runs in memory instead of in asyncio's own layer, because only then the bytes on the wire can be
counted. hypercorn 0.18 was tried first: with all its timeouts at 5 s it keeps a body that arrives
at one byte in 2 s, it accepted 1,500 connections of one address, and it hides the bytes on the
wire.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from deployment.gateway.exchange import Exchange, Waiting
from deployment.gateway.limits import Limits
from deployment.gateway.refusals import Refusals

_PIECE = 1 << 14  # bytes that are decrypted at once: a record of TLS
_UNSENT = 1 << 22  # bytes that a client may leave unread before it is disconnected
_LINGER = 2.0  # seconds in which a client may read the last answer


class Http(Protocol):
    """HTTP/2 on a connection."""

    def received(self, data: bytes) -> None:
        """Handle decrypted bytes."""

    def lost(self) -> None:
        """Cancel all requests: the connection is closed."""


class Host(Protocol):
    """The owner of all connections."""

    context: ssl.SSLContext
    limits: Limits
    refusals: Refusals
    waiting: Waiting

    def opened(self, connection: Connection) -> bool:
        """Register a new connection; return False if there are too many."""

    def may_ask(self, connection: Connection) -> bool:
        """Count a request; return False if its address has sent too many."""

    def verified(self, connection: Connection, node: int) -> bool:
        """Attribute a connection and a request to a node; return False if the node has too many."""

    def working(self, connection: Connection) -> AbstractContextManager[None]:
        """Charge the processor's time of the block to the sender of a connection's bytes."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def speak(self, connection: Connection) -> Http:
        """Return the handler of a connection's decrypted bytes."""

    async def handle(self, connection: Connection, exchange: Exchange) -> None:
        """Answer a request."""


class Connection(asyncio.Protocol):
    """A connection from its first byte to its last.

    Attributes:
        address: of the client; an IPv4 address also where it came to a socket of IPv6.
        origin: what counts as one address.
        up: received bytes, as seen at the socket.
        down: sent bytes, as seen at the socket.
        counted: how many of both were added to the totals.
        node: id of the node whose signature was verified on this connection, if any.
        deadline: time of the event loop at which the connection is closed.
    """

    def __init__(self, door: Host):
        self.door, self.address, self.origin = door, "", ""
        self.up = self.down = 0
        self.counted = (0, 0)
        self.node: int | None = None
        self.deadline = float("inf")
        self.closing = False
        self._http: Http | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = door.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._paused = False
        self._next: asyncio.Handle | None = None  # the call that handles the next piece

    def expect(self, seconds: float | None) -> None:
        """Close the connection unless something happens within this time; None: no limit."""
        if not self.closing:
            loop = asyncio.get_running_loop()
            self.deadline = float("inf") if seconds is None else loop.time() + seconds

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or not."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]).removeprefix("::ffff:") if peer else ""
        self.origin = origin_of(self.address)
        self.expect(self.door.limits.handshake)
        if not self.door.opened(self):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel its requests and forget it."""
        self.closing = True
        self._may_write.set()
        if self._http is not None:
            self._http.lost()
        self.door.closed(self)

    def pause_writing(self) -> None:
        """Note that the client takes less than is sent."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Decrypt bytes and pass them on."""
        self.up += len(data)
        if self.closing:  # it may read the last answer, but says nothing more
            if self.node is None:
                self.pause_reading()
            return
        self._incoming.write(data)
        if self._next is None:
            self._work()

    def _work(self) -> None:
        """Handle a piece of what has arrived; other connections come before the next piece.

        Nothing more is received until all has been handled, or it would pile up.
        """
        self._next = None
        if self.closing:
            return
        with self.door.working(self):
            more = self._step()
        if self._next is not None:  # it has been told to rest
            return
        if more:
            self.pause_reading()
            self._next = asyncio.get_running_loop().call_soon(self._work)
        else:
            self.resume_reading()

    def _step(self) -> bool:
        """Continue the handshake, or decrypt and handle a piece; return whether there is more."""
        try:
            if self._http is None:
                self._tls.do_handshake()
                self._flush()
                self.expect(self.door.limits.request)
                self._http = self.door.speak(self)
            if plain := self._tls.read(_PIECE):
                self._http.received(plain)
                return True
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert says why
            if self._http is None:
                self.door.refusals.log_handshake(self.address, _cause(error))
        self.abort_after_sending()  # also where the client ended TLS
        return False

    def rest(self, seconds: float) -> None:
        """Handle nothing more for some time."""
        if self._next is not None:
            self._next.cancel()
        self.pause_reading()
        self._next = asyncio.get_running_loop().call_later(seconds, self._work)

    # For HTTP

    def write(self, data: bytes) -> None:
        """Encrypt and send bytes."""
        if self.closing or self._transport.is_closing():
            return
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self._flush()
        if self._transport.get_write_buffer_size() > _UNSENT + len(data):
            self._transport.abort()

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent.

        Raises:
            ConnectionError: it does not within the time for a piece, or is disconnected.
        """
        if not self._may_write.is_set():
            try:
                await asyncio.wait_for(self._may_write.wait(), self.door.limits.piece)
            except TimeoutError:
                self._transport.abort()
        if self._transport.is_closing():
            raise ConnectionError("disconnected")

    def pause_reading(self) -> None:
        """Receive nothing more for now."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """End TLS and the connection, but let the client read what was sent."""
        if self.closing:
            return
        with suppress(ssl.SSLError):  # it wants the client's answer, which is not waited for
            self._tls.unwrap()
        self._flush()
        self.abort_after_sending()

    def abort_after_sending(self) -> None:
        """Close soon: a socket with unread bytes would take back what was sent at once."""
        if self.closing:
            return
        unsent = self._transport.get_write_buffer_size()
        self.expect(self.door.limits.piece if unsent else _LINGER)
        self.closing = True
        self.resume_reading()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._transport.is_closing():
            self.down += len(data)
            self._transport.write(data)


def origin_of(address: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, which one site has alone."""
    if ":" not in address:
        return address
    network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    return str(network)


def _cause(error: ssl.SSLError) -> str:
    """Return why a handshake failed, such as "tlsv1 alert unknown ca"."""
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "plain HTTP or another protocol; this port speaks TLS only"
    return (error.reason or "unknown").replace("_", " ").lower()
