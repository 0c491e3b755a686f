"""The door of the server: who may connect, for how long, at what cost, and how many bytes pass."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from deployment.gateway.connected import Connected
from deployment.gateway.connection import Connection, Http
from deployment.gateway.counts import Counts
from deployment.gateway.exchange import Exchange, Waiting
from deployment.gateway.http2 import Http2
from deployment.gateway.limits import Limits, Rate
from deployment.gateway.refusals import Refusals

_SWEEP = 0.5  # seconds between two checks of all deadlines
_Key = TypeVar("_Key")
Handler = Callable[[Connection, Exchange], Awaitable[None]]


class Door:
    """All connections, and what each may cost; see ``Limits``.

    A connection belongs to a stranger until a request on it was signed by a registered node. Too
    many strangers push out those who came first, never a node. Whoever has used up a budget of
    the processor's time waits until it is there again.

    Args:
        context: for TLS.
        limits: of all connections.
        counts: of the bytes on the wire.
        connected: keeps which nodes are connected.
        handle: answers a request.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: Limits,
        counts: Counts,
        connected: Connected,
        handle: Handler,
    ):
        self.context, self.limits, self._handle = context, limits, handle
        self._connected = connected
        self.refusals = Refusals()
        self.waiting = Waiting()
        self._counts = counts
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # in order of arrival
        self._of_address: Counter[str] = Counter()
        self._of_node: Counter[int] = Counter()
        self._arrivals: Rate[str] = Rate(limits.arrivals)
        self._requests: Rate[str] = Rate(limits.requests)
        self._strange_requests: Rate[str] = Rate(limits.strange_requests)
        self._key_requests: Rate[int] = Rate(limits.key_requests)
        self._strange_work: Rate[str] = Rate(limits.strange_work)
        self._all_strange_work: Rate[None] = Rate(limits.all_strange_work)
        self._key_work: Rate[int] = Rate(limits.key_work)

    def opened(self, connection: Connection) -> bool:
        """Register a new connection; return False if there are too many."""
        self._connections.add(connection)
        self._strangers[connection] = None
        self._of_address[connection.origin] += 1
        if len(self._strangers) > self.limits.strangers:
            next(iter(self._strangers)).abort()
        allowed = (
            len(self._connections) <= self.limits.connections
            and self._of_address[connection.origin] <= self.limits.per_address
            and self._arrivals.allows(connection.origin)
        )
        if not allowed:
            self.refusals.log(connection.address, "", "", 503, "too many connections")
        return allowed

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._counts.add(connection)
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        _decrease(self._of_address, connection.origin)
        if connection.node is not None:
            _decrease(self._of_node, connection.node)

    def may_ask(self, connection: Connection) -> bool:
        """Count a request; return False if its address has sent too many."""
        address = connection.origin
        return self._requests.allows(address) and (
            connection.node is not None or self._strange_requests.allows(address)
        )

    def verified(self, connection: Connection, node: int) -> bool:
        """Attribute a connection and a request to a node; return False if the node has too many."""
        if not self._key_requests.allows(node):
            return False
        if connection.node == node:
            return True
        if self._of_node[node] >= self.limits.per_key:
            return False
        if connection.node is not None:
            self._counts.add(connection)
            _decrease(self._of_node, connection.node)
        connection.node = node
        self._of_node[node] += 1
        self._strangers.pop(connection, None)
        return True

    @contextmanager
    def working(self, connection: Connection) -> Iterator[None]:
        """Charge the processor's time of the block to the sender of a connection's bytes."""
        begun = time.thread_time()
        try:
            yield
        finally:
            used = time.thread_time() - begun
            if connection.node is not None:
                wait = self._key_work.spend(connection.node, used)
            else:
                of_all = self._all_strange_work.spend(None, used)
                wait = max(of_all, self._strange_work.spend(connection.origin, used))
            if wait:
                connection.rest(wait)

    def speak(self, connection: Connection) -> Http:
        """Return the handler of a connection's decrypted bytes."""
        return Http2(connection)

    async def handle(self, connection: Connection, exchange: Exchange) -> None:
        """Answer a request."""
        await self._handle(connection, exchange)

    async def sweep(self) -> None:
        """Close connections at their deadlines and save the counts, for ever."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = asyncio.get_running_loop().time()
            for connection in list(self._connections):
                if connection.node is not None:  # a stranger's bytes may turn out to be a node's
                    self._counts.add(connection)
                if connection.deadline <= now:
                    connection.abort()
            try:
                self._counts.save()
                self._connected.save(self._of_node)
            except OSError as error:  # a full disk must not keep nodes out
                self.refusals.warn(f"bytes on the wire cannot be saved ({error.strerror})")


def _decrease(counter: Counter[_Key], key: _Key) -> None:
    """Subtract one; drop a key at zero, so that the counter stays small."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
