"""Pages that are sent as a whole when they change."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fedpeft.page.snapshots import Snapshots


def test_changes_are_sent_once_and_reads_serve_all_readers() -> None:
    content: dict[str, Any] = {"value": 1}
    reads: list[int] = []

    def read() -> dict[str, Any]:
        reads.append(1)
        return dict(content)

    feed = Snapshots(read, 0.3)
    first = feed.whole()
    assert first["value"] == 1 and feed.changes(first["cursor"]) is None
    content["value"] = 2
    assert feed.changes(first["cursor"]) is None and len(reads) == 1  # still the same read
    time.sleep(0.35)
    second = feed.changes(first["cursor"])
    assert second and second["value"] == 2 and second["cursor"] != first["cursor"]
    assert feed.changes(second["cursor"]) is None and len(reads) == 2
    assert feed.changes("of another server") == second


def test_a_value_that_json_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Snapshots(lambda: {"epsilon": float("inf")}, 1).whole()
