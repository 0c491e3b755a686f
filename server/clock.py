"""The time of a run: that of this machine, or the virtual time of a simulation with devices."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import numpy as np

_POLLS = 0.05, 1.0  # least and most seconds between two polls for replies
_DELAY = 0.02  # of the time waited so far, between these: polls of long rounds may be rare


@runtime_checkable
class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Return the seconds since a fixed moment."""

    def rest(self, begun: float, until: float) -> None:
        """Wait for replies that are awaited since ``begun``, at most ``until``."""

    def within_reach(self, clients: np.ndarray, least: int) -> np.ndarray:
        """Return those of the clients [n] that can be asked now; wait until they are ``least``."""

    def seek(self, seconds: float) -> None:
        """Go to a moment, if this clock can."""


class RealClock:
    """The time of this machine."""

    def now(self) -> float:
        """Return the seconds since a fixed moment."""
        return time.monotonic()

    def rest(self, begun: float, until: float) -> None:
        """Sleep, the longer the longer it has waited; see ``Clock``."""
        now = self.now()
        seconds = min(max(_POLLS[0], _DELAY * (now - begun)), _POLLS[1])
        time.sleep(max(0.0, min(seconds, until - now)))

    def within_reach(self, clients: np.ndarray, least: int) -> np.ndarray:
        """Return all clients: nodes that are away do not take part."""
        return clients

    def seek(self, seconds: float) -> None:
        """Stay: the time of this machine goes on."""
