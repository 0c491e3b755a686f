"""The gateway's counts as the server app reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.exchange.wire_bytes import STRANGERS, WIRE, WireMeter, read_wire


def write(state: Path, counts: dict[str, tuple[int, int]]) -> None:
    totals = {node: {"down": down, "up": up} for node, (down, up) in counts.items()}
    (state / WIRE).write_text(json.dumps(totals))


def test_strangers_are_no_node(tmp_path: Path) -> None:
    write(tmp_path, {"17": (3, 4), STRANGERS: (5, 6)})
    assert read_wire(tmp_path) == {17: {"down": 3, "up": 4}}


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"x": 1}', '{"17": {"up": 1}}'])
def test_missing_or_damaged_counts_are_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / WIRE).write_text(content)
    assert read_wire(tmp_path) == {}


def test_meter_returns_the_bytes_between_two_calls(tmp_path: Path) -> None:
    write(tmp_path, {"17": (3, 4)})
    meter = WireMeter(tmp_path)
    assert meter.since_last({0: 17}) == {0: {"down": 0, "up": 0}}
    write(tmp_path, {"17": (10, 5), "18": (7, 8)})
    assert meter.since_last({1: 18, 0: 17, 2: 19}) == {
        0: {"down": 7, "up": 1},
        1: {"down": 7, "up": 8},
        2: {"down": 0, "up": 0},
    }
    write(tmp_path, {"17": (1, 1)})  # began again
    assert meter.since_last({0: 17}) == {0: {"down": 0, "up": 0}}


def test_simulation_has_no_wire() -> None:
    assert WireMeter(None).since_last({0: 17}) is None
