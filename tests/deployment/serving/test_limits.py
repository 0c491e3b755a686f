"""The allowance of an address over time."""

from __future__ import annotations

from deployment.serving import limits
from deployment.serving.limits import Rates


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_address_may_send_two_seconds_of_texts_at_once() -> None:
    clock = Clock()
    rates = Rates(10, clock)
    assert [rates.wait("a", 10) for _ in range(2)] == [0, 0]
    assert rates.wait("a", 5) == 0.5
    assert rates.wait("b", 1) == 0
    clock.now = 0.5
    assert rates.wait("a", 5) == 0
    assert rates.wait("a", 1) > 0


def test_a_large_request_is_paid_for_afterwards() -> None:
    clock = Clock()
    rates = Rates(10, clock)
    assert rates.wait("a", 60) == 0  # 20 of allowance, 40 owed
    assert rates.wait("a", 1) == 4.1
    clock.now = 4.1
    assert rates.wait("a", 1) == 0


def test_no_rate_is_no_limit() -> None:
    assert not any(Rates(0).wait("a", 1000) for _ in range(10))


def test_addresses_with_a_full_allowance_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(limits, "_ADDRESSES", 3)
    clock = Clock()
    rates = Rates(1, clock)
    for number in range(3):
        rates.wait(f"old{number}", 1)
    clock.now = 100.0
    rates.wait("new", 1)
    assert list(rates._left) == ["new"]
