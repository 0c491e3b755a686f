"""What a stranger, an address, a registered key, and all of them together may cost."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

MEGABYTE = 10**6
_LONGEST = 3.0  # seconds that a debt takes to be paid
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Budget:
    """So much at once, and so much a second from then on."""

    burst: float
    rate: float


@dataclass(frozen=True)
class Limits:
    """The gateway's limits; times are in seconds, sizes in bytes.

    100 nodes behind one address, each with a connection of its own, stay far below all of them. A
    stranger is a connection on which no request was signed by a registered node yet.

    Attributes:
        body: the largest body of a request.
        head: the largest list of headers of a request, 32 bytes more for each; a node's has 1,500.
        waiting: bytes of bodies and responses that the gateway holds for all connections together.
        handshake: for the TLS handshake.
        request: for the head of a request, from the handshake.
        idle: for the next request on a connection of a node.
        piece: between two pieces of a body or of a response, and for a free way to the SuperLink.
        slowest: bytes per second that a body must reach on average, after ``piece`` seconds.
        hold: the longest wait of a pull for a message. The node's client gives up after 30 s.
        strangers: connections of strangers.
        connections: all connections.
        per_address: connections of one address.
        per_key: connections of one registered key.
        streams: concurrent requests on one connection.
        upstream: concurrent requests of one key at the SuperLink.
        arrivals: new connections of an address.
        requests: requests of an address, and of one of its strangers.
        strange_requests: requests of the strangers of an address; each may cost a signature check.
        key_requests: requests of a registered key.
        strange_work: seconds of the processor for the strangers of an address.
        all_strange_work: for all strangers together. The first bytes of a connection are handled in
            any case: who sends them is not known before.
        key_work: for a registered key.
    """

    body: int = 64 * MEGABYTE
    head: int = 4096
    waiting: int = 64 * MEGABYTE
    handshake: float = 10.0
    request: float = 20.0
    idle: float = 120.0
    piece: float = 60.0
    slowest: float = 500.0
    hold: float = 20.0
    strangers: int = 1000
    connections: int = 4000
    per_address: int = 1000
    per_key: int = 32
    streams: int = 100
    upstream: int = 8
    arrivals: Budget = Budget(1000, 100)
    requests: Budget = Budget(3000, 300)
    strange_requests: Budget = Budget(500, 50)
    key_requests: Budget = Budget(1000, 100)
    strange_work: Budget = Budget(2.0, 0.1)
    all_strange_work: Budget = Budget(4.0, 0.4)
    key_work: Budget = Budget(10.0, 0.5)


class Rate(Generic[_Key]):
    """A budget for each of many keys (token buckets).

    Args:
        budget: of each key.
        keys: number of keys to remember; the ones unused for longest are forgotten.
    """

    def __init__(self, budget: Budget, keys: int = 10_000):
        self._budget, self._keys = budget, keys
        self._buckets: OrderedDict[_Key, tuple[float, float]] = OrderedDict()

    def allows(self, key: _Key, cost: float = 1.0) -> bool:
        """Spend ``cost`` of a key's budget if there is so much; return whether there was."""
        left = self._left(key)
        allowed = left >= cost
        self._keep(key, left - cost if allowed else left)
        return allowed

    def spend(self, key: _Key, cost: float) -> float:
        """Spend what is known only afterwards; return the seconds until the debt is paid.

        The debt is bounded: who comes later must not wait for long for what others have done.
        """
        left = max(self._left(key) - cost, -_LONGEST * self._budget.rate)
        self._keep(key, left)
        return max(0.0, -left / self._budget.rate)

    def _left(self, key: _Key) -> float:
        now = time.monotonic()
        left, before = self._buckets.get(key, (self._budget.burst, now))
        return min(self._budget.burst, left + (now - before) * self._budget.rate)

    def _keep(self, key: _Key, left: float) -> None:
        self._buckets[key] = left, time.monotonic()
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
