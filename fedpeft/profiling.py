"""Time spent in named phases of the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Phase = Literal[
    "data",
    "below",
    "forward",
    "backward",
    "optimiser",
    "DP",
    "coding",
    "masking",
    "unmasking",
    "serialisation",
    "evaluation",
]


class Stopwatch:
    """Seconds of each phase; the time of a nested phase does not count for the outer one.

    Args:
        finish: called at the end of a phase, before its time is taken, for example to wait for a
            GPU.
        ended: called after the end of a phase; its time counts for no phase.
    """

    def __init__(
        self,
        finish: Callable[[], None] = lambda: None,
        ended: Callable[[Phase], None] = lambda phase: None,
    ):
        self.seconds: dict[Phase, float] = {}
        self._finish, self._ended, self._open = finish, ended, list[Phase]()
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[Stopwatch]:
        """Measure the phases of this thread while the context is open."""
        token = _WATCH.set(self)
        try:
            yield self
        finally:
            _WATCH.reset(token)

    def begin(self, phase: Phase) -> None:
        """Begin a phase and pause the outer one."""
        self._take()
        self._open.append(phase)

    def end(self) -> None:
        """End the phase that began last."""
        self._finish()
        self._take()
        self._ended(self._open.pop())
        self._since = time.perf_counter()

    def _take(self) -> None:
        now = time.perf_counter()
        if self._open:
            phase = self._open[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


_WATCH: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Count the time in the context as a phase; almost free without a running ``Stopwatch``."""
    watch = _WATCH.get()
    if watch is None:
        yield
        return
    watch.begin(name)
    try:
        yield
    finally:
        watch.end()
