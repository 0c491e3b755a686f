"""The supervisor: starts a server's or a node's processes, restarts what ends, stops them all."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from fedpeft.child import Child, Running

_POLL = 0.1  # seconds between two looks at the children
_STOP = 10.0  # seconds that all children together have to end by themselves
_STOP_EACH = 1.0  # seconds of it that are kept for each child that is stopped later


class Supervisor:
    """Keeps children running: in order at the start, each by itself later, in reverse at the end.

    Every child has its own session, and gets SIGTERM should this process die (setpriv, where it
    is installed). ``pids`` and ``restarts`` may be read from other threads.
    """

    def __init__(
        self,
        children: Sequence[Child],
        log: logging.Logger,
        backoff: Sequence[float] = (1.0, 2.0, 5.0, 10.0, 30.0),
    ):
        self.restarts = {child.name: 0 for child in children}
        self.pids: dict[str, int] = {}
        self._log = log
        self._running = [Running(child, log, backoff) for child in children]
        self._stopping = False  # not an Event: a signal handler must not wait for a lock

    def stop(self) -> None:
        """Make ``run`` stop the children and return; from any thread or a signal handler."""
        self._stopping = True

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run the children until SIGTERM, SIGINT or ``stop``; then end them all, within 15 s.

        The next child is started when the one before is ready; ``on_ready`` is called once, when
        all are. A child that ends, is not ready in time, or later not for as long, is started
        again after a pause that grows from restart to restart. One that hangs but is taken for
        ready goes on hanging: ``ready`` decides what is noticed.

        Raises:
            UserError: a program is not installed; nothing has been started.
        """
        for running in self._running:
            running.find_program()
        with self._signals():
            try:
                told = False
                while not self._stopping:
                    if self._watch() and not told:
                        told = True
                        on_ready()
                    time.sleep(_POLL)
            finally:
                self._end()

    def _watch(self) -> bool:
        """Start, restart and ask the children; return whether all have been ready once."""
        for running in self._running:
            if self._stopping:
                return False
            running.watch()
            self.restarts[running.child.name] = running.restarts
            if running.process is not None:
                self.pids[running.child.name] = running.process.pid
            else:
                self.pids.pop(running.child.name, None)
            if not running.once_ready:
                return False
        return True

    def _end(self) -> None:
        deadline = time.monotonic() + _STOP
        for later, running in reversed(list(enumerate(self._running))):
            running.end(deadline - later * _STOP_EACH)
            self.pids.pop(running.child.name, None)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT for a wish to stop; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.stop()

        earlier = {kind: signal.signal(kind, ask) for kind in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for kind, handler in earlier.items():
                signal.signal(kind, handler)
