"""Messages in the SuperLink's database: which wait for nodes, and what got lost on the way.

Written against the tables of flwr 1.41 and 1.42; a contract test checks them with a real SuperLink
state.
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
_NEEDED = """
    SELECT session_id, object_id FROM object_push_session_roots
    JOIN object_push_session_pending USING (session_id) WHERE root_object_id = ?"""
_HAS = "SELECT 1 FROM objects WHERE object_id = ? AND is_available = 1"


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
        rows = self._read(_LOST, _signed(node_id), time.time())
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

    def needed(self, message_id: str) -> tuple[str, list[str]]:
        """Return the objects of an announced reply that have not arrived, and their push session.

        Raises:
            sqlite3.Error: the database cannot be read, or its tables have changed.
        """
        rows = self._read(_NEEDED, message_id)
        return (rows[0][0] if rows else ""), [object_id for _, object_id in rows]

    def has_object(self, object_id: str) -> bool:
        """Return whether an object has arrived and was not fetched yet; errors as ``needed``."""
        return bool(self._read(_HAS, object_id))

    def _read(self, query: str, *values: object) -> list[tuple[str, ...]]:
        try:
            return self._open().execute(query, values).fetchall()
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
