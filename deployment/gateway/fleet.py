"""The handling of requests: refuse, hold, or pass on to the SuperLink."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from deployment.gateway.admission import Admission, Admitted, Refused
from deployment.gateway.connection import Connection
from deployment.gateway.exchange import BodyTooLarge, BodyTooSlow, Disconnected, Exchange
from deployment.gateway.holding import Holding
from deployment.gateway.mailbox import Mailbox
from deployment.gateway.replies import PATHS, START, amended
from deployment.gateway.upstream import Upstream
from server.members.registry import Registered

PULL = "/v1/fleet/pull-messages"
_OPEN = re.compile(r"/v1/fleet/[a-z-]{1,40}")
_PULL_BYTES = 4096  # of the body of a pull; it has 11
_SPARE = 5.0  # seconds of a signature's time left when a held pull reaches the SuperLink
_LARGE = "the message is too large (fedpeft server up --max-body)"
_BUSY = "too many requests or connections"
# Of answers of the SuperLink itself.
_REASONS = {
    401: "no signature of a node that the SuperLink knows, or its clock is wrong",
    403: "the SuperLink forbids it, for example because the run is over; see the SuperLink's line",
    412: "the SuperLink refuses this node, for example because it is online already; see the "
    "SuperLink's line",
}


class Fleet:
    """The nodes' part of the SuperLink.

    Args:
        admission: decides whose request it is.
        mailbox: knows which nodes have messages.
        upstream: the SuperLink.
    """

    def __init__(self, admission: Admission, mailbox: Mailbox, upstream: Upstream):
        self._admission, self._mailbox, self._upstream = admission, mailbox, upstream
        self._holding = Holding(mailbox)
        self._pulls: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._forwarded: dict[int, asyncio.Semaphore] = {}

    async def handle(self, connection: Connection, exchange: Exchange) -> None:
        """Answer a request.

        Raises:
            ConnectionError: the response broke off.
        """
        try:
            admitted = self._admit(connection, exchange)
            with self._logged(connection, exchange):
                if exchange.path == PULL:
                    await self._pull(connection, exchange, admitted)
                else:
                    async with self._turn(connection, admitted.node):
                        await self._pass(connection, exchange)
        except Refused as refused:
            await self._refuse(connection, exchange, refused)
        except BodyTooLarge:
            await self._refuse(connection, exchange, Refused(413, _LARGE))
        except BodyTooSlow:
            reason = "the request did not arrive in time"
            await self._refuse(connection, exchange, Refused(408, reason))
        except Disconnected:
            pass

    @contextmanager
    def _logged(self, connection: Connection, exchange: Exchange) -> Iterator[None]:
        """Log an answer of the SuperLink that is no success, also to a client that leaves."""
        try:
            yield
        finally:
            status = exchange.answer.status
            if status and not 200 <= status < 300:
                reason = _REASONS.get(status, f"the SuperLink answered {status}")
                self._log(connection, exchange, status, reason)

    def _admit(self, connection: Connection, exchange: Exchange) -> Admitted:
        """Decide from the head alone whether a request is read at all."""
        if exchange.method != "POST" or not _OPEN.fullmatch(exchange.path):
            raise Refused(403, "only POST /v1/fleet/NAME is open to the outside")
        door = connection.door
        if not door.may_ask(connection):
            raise Refused(503, _BUSY + " from this address")
        with door.working(connection):
            admitted = self._admission.check(exchange.path, exchange.headers)
        if not door.verified(connection, admitted.node.node_id):
            raise Refused(503, f"{_BUSY} of node '{admitted.node.name}'")
        if exchange.length is not None and not 0 <= exchange.length <= door.limits.body:
            raise Refused(413, _LARGE)
        if door.waiting.bytes > door.limits.waiting:
            raise Refused(503, "too many messages arrive at once")
        return admitted

    async def _pull(self, connection: Connection, exchange: Exchange, admitted: Admitted) -> None:
        body = await exchange.body.all(_PULL_BYTES)
        node = admitted.node.node_id
        async with self._pulls[node]:  # an earlier pull may be getting a message just now
            try:
                self._mailbox.deliver_again(node)
            except sqlite3.Error as error:
                _warn(connection, error)
        hold = min(connection.door.limits.hold, admitted.seconds - _SPARE)
        if not await self._holding.message(node, hold):
            await exchange.respond(b"")
            return
        async with self._pulls[node], self._turn(connection, admitted.node):
            await self._upstream.forward(exchange, connection.address, body)

    @asynccontextmanager
    async def _turn(self, connection: Connection, node: Registered) -> AsyncIterator[None]:
        """Wait for one of the ways to the SuperLink that a key may use at the same time.

        Raises:
            Refused: none became free in time.
        """
        limits = connection.door.limits
        ways = self._forwarded.setdefault(node.node_id, asyncio.Semaphore(limits.upstream))
        try:
            async with asyncio.timeout(limits.piece):
                await ways.acquire()
        except TimeoutError:
            raise Refused(503, f"{_BUSY} of node '{node.name}'") from None
        try:
            yield
        finally:
            ways.release()

    async def _pass(self, connection: Connection, exchange: Exchange) -> None:
        """Pass a request on; parts of a reply may come again, see ``replies``."""
        if exchange.path not in PATHS:
            await self._upstream.forward(exchange, connection.address)
            return
        start = await exchange.body.peek(START)

        def amend(answer: bytes) -> bytes:
            try:
                return amended(self._mailbox, exchange.path, start, answer)
            except sqlite3.Error as error:
                _warn(connection, error)
                return answer

        await self._upstream.forward(exchange, connection.address, amend=amend)

    async def _refuse(self, connection: Connection, exchange: Exchange, refused: Refused) -> None:
        self._log(connection, exchange, refused.status, str(refused))
        headers = [(b"content-length", b"%d" % len(refused.body))]
        if refused.body:
            headers.append((b"content-type", b"application/json"))
        await exchange.answer.start(refused.status, headers)
        if refused.body:
            await exchange.answer.send(refused.body)
        await exchange.answer.end()

    def _log(self, connection: Connection, exchange: Exchange, status: int, reason: str) -> None:
        connection.door.refusals.log(
            connection.address, exchange.method, exchange.path, status, reason
        )


def _warn(connection: Connection, error: sqlite3.Error) -> None:
    connection.door.refusals.warn(f"the SuperLink's database cannot be used: {error}")
