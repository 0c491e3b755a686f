"""Bounds on what one connection, one address, one node and all of them together may use."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

MEGABYTE = 10**6
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Limits:
    """The gateway's limits; times are in seconds, sizes in bytes.

    100 nodes behind one address, each with a connection of its own, stay far below all of them.

    Attributes:
        body: the largest body of a request.
        head: the largest head of a request.
        waiting: bytes of bodies and responses that the gateway holds for all connections together.
        handshake: for the TLS handshake.
        request: for the head of a request, from its first byte or from the handshake.
        idle: for the next request on a connection of a node.
        piece: between two pieces of a body or of a response.
        slowest: bytes per second that a body must reach on average, after ``piece`` seconds.
        hold: the longest wait of a pull for a message. The node's client gives up after 30 s.
        strangers: connections that have not shown the signature of a node yet.
        connections: all connections.
        per_address: connections of one address.
        per_node: connections of one node.
        streams: concurrent requests on one HTTP/2 connection.
        frames: HTTP/2 frames without data per second that one connection may send.
    """

    body: int = 64 * MEGABYTE
    head: int = 16 * 1024
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
    per_node: int = 32
    streams: int = 100
    frames: float = 200.0


class Rate(Generic[_Key]):
    """Token buckets by key: ``rate`` events per second, and ``burst`` at once.

    Args:
        rate: events per second.
        burst: events at once.
        keys: number of keys to remember; the ones unused for longest are forgotten.
    """

    def __init__(self, rate: float, burst: float, keys: int = 10_000):
        self._rate, self._burst, self._keys = rate, burst, keys
        self._buckets: OrderedDict[_Key, tuple[float, float]] = OrderedDict()

    def allows(self, key: _Key, cost: float = 1.0) -> bool:
        """Count an event of ``key`` and return whether it is within the rate."""
        now = time.monotonic()
        left, before = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._rate)
        allowed = left >= cost
        self._buckets[key] = (left - cost if allowed else left, now)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return allowed
