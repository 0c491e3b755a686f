"""The feed of a page whose whole content is small, so that each change sends all of it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any


class Snapshots:
    """A feed, see ``fedpeft.page.app.Feed``; several threads may use it.

    Args:
        read: returns the entries of the page. None may change with time alone, as an age in seconds
            does: each change is sent.
        interval: seconds between two reads, which serve all readers of the page.
    """

    def __init__(self, read: Callable[[], dict[str, Any]], interval: float):
        self.interval = interval
        self._read, self._at = read, float("-inf")
        self._content: dict[str, Any] = {}
        self._lock = threading.Lock()

    def whole(self) -> dict[str, Any]:
        """Return the current content, with its digest as the cursor."""
        with self._lock:
            if time.monotonic() - self._at >= self.interval:
                content = self._read()
                text = json.dumps(content, sort_keys=True, allow_nan=False)
                cursor = hashlib.sha256(text.encode()).hexdigest()[:16]
                self._content, self._at = {**content, "cursor": cursor}, time.monotonic()
            return self._content

    def changes(self, cursor: str) -> dict[str, Any] | None:
        """Return the current content; None if the cursor is its digest."""
        content = self.whole()
        return None if content["cursor"] == cursor else content
