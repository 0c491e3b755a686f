"""The gateway keeps which nodes are connected."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deployment.gateway.connected import Connected
from deployment.server.presence import CONNECTED, Line, connected_nodes

NOW = "2026-01-31T12:00:00.000+00:00"


def changed_at(line: Line) -> bool:
    """Return whether a line changed within the last minute."""
    return (datetime.now(UTC) - datetime.fromisoformat(line.since)).total_seconds() < 60


def test_lines_follow_the_connections(tmp_path: Path) -> None:
    connected = Connected(tmp_path)
    connected.save([])
    assert not (tmp_path / CONNECTED).exists()
    connected.save([2**63 + 5, 7])
    before = connected_nodes(tmp_path)
    assert {node: line.connected for node, line in before.items()} == {2**63 + 5: True, 7: True}
    connected.save([7])
    after = connected_nodes(tmp_path)
    assert not after[2**63 + 5].connected and after[7] == before[7]
    assert all(changed_at(line) for line in after.values())


def test_the_file_is_written_only_after_a_change(tmp_path: Path) -> None:
    connected = Connected(tmp_path)
    connected.save([7])
    (tmp_path / CONNECTED).unlink()
    connected.save([7])
    assert not (tmp_path / CONNECTED).exists()


def test_nodes_of_a_killed_gateway_are_away(tmp_path: Path) -> None:
    (tmp_path / CONNECTED).write_text(json.dumps({"7": [True, NOW], "8": [False, NOW]}))
    connected = Connected(tmp_path)
    connected.save([])
    lines = connected_nodes(tmp_path)
    assert not lines[7].connected and changed_at(lines[7])
    assert lines[8] == Line(False, NOW)


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1}', '{"7": 1}', '{"7": [true]}'])
def test_a_damaged_file_begins_again(tmp_path: Path, content: str) -> None:
    (tmp_path / CONNECTED).write_text(content)
    assert connected_nodes(tmp_path) == {}
    Connected(tmp_path).save([7])
    assert connected_nodes(tmp_path)[7].connected
