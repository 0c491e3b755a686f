"""Budgets, and how the door charges them."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from deployment.gateway.connected import Connected
from deployment.gateway.connection import Connection, origin_of
from deployment.gateway.counts import Counts
from deployment.gateway.door import Door
from deployment.gateway.exchange import Exchange
from deployment.gateway.limits import Budget, Limits, Rate


def test_a_burst_is_there_at_once_and_the_rest_comes_slowly() -> None:
    rate: Rate[str] = Rate(Budget(3, 1e-6))
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False]
    assert rate.allows("b")


def test_what_is_spent_beyond_a_budget_is_a_debt() -> None:
    rate: Rate[str] = Rate(Budget(3.0, 0.1))
    assert rate.spend("a", 2.0) == 0
    assert rate.spend("a", 1.2) == pytest.approx(2.0, abs=0.1)  # a tenth of it each second
    assert rate.spend("b", 1.0) == 0
    assert not rate.allows("a")


def test_a_debt_is_paid_within_seconds() -> None:
    assert Rate[str](Budget(burst=1.0, rate=0.5)).spend("a", 1000.0) == pytest.approx(3.0, abs=0.1)


def test_keys_unused_for_longest_are_forgotten() -> None:
    rate: Rate[int] = Rate(Budget(1, 1e-6), keys=2)
    assert rate.allows(1) and rate.allows(2) and not rate.allows(1)
    assert rate.allows(3)  # 2 is forgotten
    assert rate.allows(2) and not rate.allows(3)


class Line:
    """A connection as the door sees it."""

    def __init__(self, address: str, node: int | None = None):
        self.origin, self.node, self.waits = address, node, list[float]()

    def rest(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    async def handle(connection: Connection, exchange: Exchange) -> None:
        raise AssertionError

    limits = Limits(
        strange_work=Budget(0.01, 1e-6),
        all_strange_work=Budget(0.03, 1e-6),
        key_work=Budget(0.02, 1e-6),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return Door(context, limits, Counts(tmp_path), Connected(tmp_path), handle)


def work(door: Door, line: Line, seconds: float = 0.015) -> bool:
    """Let a line cost processor time; return whether it has to rest."""
    with door.working(line):  # type: ignore[arg-type]
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
    return bool(line.waits)


def test_work_is_charged_to_address_all_strangers_or_key(door: Door) -> None:
    assert work(door, Line("a"))  # more than an address may cost
    assert work(door, Line("a"), 0.0001)  # on any of its connections
    assert not work(door, Line("b"), 0.005)
    node = Line("a", 7)
    assert not work(door, node)  # a node has its own budget
    assert work(door, Line("c"), 0.012)
    assert work(door, Line("d"), 0.0001)  # all strangers together have used up theirs
    assert not work(door, Line("a", 8), 0.001)
    assert work(door, node)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_network_of_one_site_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) == same
