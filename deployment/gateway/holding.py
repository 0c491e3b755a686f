"""Long polling: pulls without a message are held until there is one.

The SuperNode asks for messages every 3 s. Held, its pull is answered as soon as a message is there,
and it costs the line a third. All held pulls share one look at the SuperLink's database, so that
50 nodes are no more work for it than one.
"""

from __future__ import annotations

import asyncio
import sqlite3

from deployment.gateway.mailbox import Mailbox

_LOOK = 0.1  # seconds between two looks at the database


class Holding:
    """The held pulls, at most one of each node."""

    def __init__(self, mailbox: Mailbox):
        self._mailbox = mailbox
        self._held: dict[int, asyncio.Future[bool]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def message(self, node_id: int, seconds: float) -> bool:
        """Wait until there is a message for a node, at most ``seconds``.

        Returns:
            Whether the pull should be passed on now; False if the node has sent a later one.
        """
        earlier = self._held.get(node_id)
        if earlier is not None and not earlier.done():
            earlier.set_result(False)
        held = self._held[node_id] = asyncio.get_running_loop().create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                return await held
        except TimeoutError:
            return True  # the SuperLink says itself that there is none
        finally:
            if self._held.get(node_id) is held:
                del self._held[node_id]

    async def _look(self) -> None:
        while self._held:
            try:
                waiting = self._mailbox.waiting()
            except sqlite3.Error:
                waiting = frozenset(self._held)  # not held: the SuperLink is asked
            for node_id in waiting & self._held.keys():
                if not self._held[node_id].done():
                    self._held[node_id].set_result(True)
                del self._held[node_id]
            await asyncio.sleep(_LOOK)
