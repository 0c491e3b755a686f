"""Limits of what a client may send."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_BURST = 2.0  # seconds of texts that an address may send at once
_ADDRESSES = 10_000  # addresses remembered; beyond it, those with a full allowance are dropped


@dataclass(frozen=True)
class Limits:
    """Limits of sizes and rates.

    Attributes:
        body: bytes of a request for predictions.
        inputs: texts in a request.
        characters: characters of a text, its second text included.
        rate: texts per second of an address; 0 = no limit.
        vector: bytes of a vector's file.
        patience: seconds for a body to arrive.
    """

    body: int = 1 << 20
    inputs: int = 64
    characters: int = 20_000
    rate: float = 0.0
    vector: int = 64 << 20
    patience: float = 20.0


class Rates:
    """A token bucket for each address.

    Args:
        rate: texts per second; 0 = no limit.
        clock: the time in seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic):
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate * _BURST)
        self._left: dict[str, tuple[float, float]] = {}  # allowance, and when it was computed

    def wait(self, address: str, texts: int) -> float:
        """Take texts from an address's allowance; return 0, or the seconds to wait first.

        A request with more texts than the allowance can ever hold is accepted when it is full.
        """
        if not self._rate:
            return 0.0
        now = self._clock()
        left, since = self._left.get(address, (self._most, now))
        left = min(self._most, left + (now - since) * self._rate)
        needed = min(float(texts), self._most)
        if left < needed:
            self._left[address] = (left, now)
            return (needed - left) / self._rate
        self._left[address] = (left - texts, now)
        if len(self._left) > _ADDRESSES:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Drop the addresses whose allowance is full again."""
        self._left = {
            address: (left, since)
            for address, (left, since) in self._left.items()
            if left + (now - since) * self._rate < self._most
        }
