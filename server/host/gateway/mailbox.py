"""Messages in the SuperLink's database: which wait for nodes, and what got lost on its way.

Written against the tables of flwr 1.41; a contract test checks them with a real SuperLink state.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

_PATIENCE = 5.0  # seconds to wait for a lock, as in the SuperLink itself
_FRESH = 5.0  # seconds until the database is read again without a change: messages expire
_ATTEMPTS = 5  # deliveries of one message, in case a node can never fetch its objects
# Messages whose objects are all there: a node that asks for one too early waits a second or more.
_WAITING = """
    WITH RECURSIVE
    new(message_id, dst_node_id) AS (
        SELECT message_id, dst_node_id FROM message_ins
        WHERE delivered_at = '' AND created_at + ttl > ?),
    part(message_id, object_id) AS (
        SELECT message_id, message_id FROM new
        UNION
        SELECT part.message_id, child_id FROM part
        JOIN object_children ON parent_id = part.object_id)
    SELECT DISTINCT dst_node_id FROM new WHERE message_id NOT IN (
        SELECT part.message_id FROM part
        JOIN objects ON objects.object_id = part.object_id WHERE is_available = 0)"""
# A node confirms a message after it has fetched its objects; the SuperLink then deletes them.
_LOST = """
    SELECT message_id FROM message_ins AS message
    WHERE dst_node_id = ? AND delivered_at != '' AND created_at + ttl > ?
    AND EXISTS (SELECT 1 FROM objects WHERE object_id = message.message_id)
    AND NOT EXISTS (
        SELECT 1 FROM message_res WHERE reply_to_message_id = message.message_id)"""
_AGAIN = "UPDATE message_ins SET delivered_at = '' WHERE message_id = ?"
# An object that is part of a node's reply, and that this reply no longer waits for.
_RECEIVED = """
    WITH RECURSIVE whole(object_id) AS (
        SELECT object_id FROM objects WHERE object_id = :object AND is_available = 1
        UNION
        SELECT parent_id FROM object_children JOIN whole ON child_id = whole.object_id)
    SELECT 1 FROM whole JOIN message_res ON message_id = whole.object_id
    WHERE src_node_id = :node AND NOT EXISTS (
        SELECT 1 FROM object_push_session_roots AS root
        JOIN object_push_session_pending AS pending USING (session_id)
        WHERE root_object_id = message_id AND pending.object_id = :object)"""


class Mailbox:
    """The messages on their way in a SuperLink's database.

    Args:
        database: the file; it may be made later.
    """

    def __init__(self, database: Path):
        self._database = database
        self._reader: sqlite3.Connection | None = None
        self._version, self._read_at = -1, 0.0
        self._waiting: frozenset[int] = frozenset()
        self._deliveries: dict[str, int] = {}

    def waiting(self) -> frozenset[int]:
        """Return the ids of all nodes with messages.

        Quick while nothing has changed: SQLite then only compares a number in shared memory.

        Raises:
            sqlite3.Error: the database cannot be read, or its tables have changed.
        """
        try:
            reader = self._open()
            (version,) = reader.execute("PRAGMA data_version").fetchone()
            if version != self._version or time.monotonic() - self._read_at > _FRESH:
                rows = reader.execute(_WAITING, (time.time(),))
                self._waiting = frozenset(_unsigned(number) for (number,) in rows)
                self._version, self._read_at = version, time.monotonic()
        except sqlite3.Error:
            self.close()
            raise
        return self._waiting

    def deliver_again(self, node_id: int) -> int:
        """Let the SuperLink hand out a node's unconfirmed messages again; return their number.

        Call it when a node asks for messages: the SuperNode handles one message at a time, so a
        message that it has not confirmed by then was lost on its way. The SuperLink itself hands
        out each message at most once, and its sender would wait for the reply in vain.

        Raises:
            sqlite3.Error: the database cannot be used, or its tables have changed.
        """
        try:
            rows = self._open().execute(_LOST, (_signed(node_id), time.time())).fetchall()
        except sqlite3.Error:
            self.close()
            raise
        lost = [number for (number,) in rows if self._deliveries.get(number, 1) < _ATTEMPTS]
        if not lost:
            return 0
        writer = sqlite3.connect(self._database, _PATIENCE)
        try:
            with writer:
                writer.executemany(_AGAIN, [(number,) for number in lost])
        finally:
            writer.close()
        for number in lost:
            self._deliveries[number] = self._deliveries.get(number, 1) + 1
        return len(lost)

    def received(self, node_id: int, object_id: str) -> bool:
        """Return whether an object of a node's reply has arrived earlier.

        The SuperLink refuses an object that arrives again, and the SuperNode then gives up the
        whole reply. But a node sends it again when only the answer got lost.

        Raises:
            sqlite3.Error: the database cannot be used, or its tables have changed.
        """
        asked = {"node": _signed(node_id), "object": object_id}
        try:
            return self._open().execute(_RECEIVED, asked).fetchone() is not None
        except sqlite3.Error:
            self.close()
            raise

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._version = None, -1

    def _open(self) -> sqlite3.Connection:
        if self._reader is None:
            uri = f"{self._database.as_uri()}?mode=ro"
            self._reader = sqlite3.connect(uri, _PATIENCE, isolation_level=None, uri=True)
        return self._reader


def _unsigned(number: int) -> int:
    """Return a node's id, which the database stores as a signed number."""
    return number % 2**64


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
