"""The supervisor: starts the processes of a server or node, restarts and stops them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from deployment.hosting.child import Child, Running
from deployment.hosting.record import write_record
from deployment.hosting.timing import Timing

_POLL = 0.1  # seconds between two checks of the children


class Supervisor:
    """Start children in order, restart each one alone, and stop them in reverse order.

    Every child has its own session, and gets SIGTERM if this process dies (through setpriv, if it
    is installed). ``pids`` and ``restarts`` may be read from other threads.

    Args:
        children: in the order in which they start.
        log: receives their output, starts, restarts and ends.
        timing: pauses before restarts, and limits of the end.
        record: file in which their pids are kept, see :mod:`deployment.hosting.record`.
    """

    def __init__(
        self,
        children: Sequence[Child],
        log: logging.Logger,
        timing: Timing | None = None,
        record: Path | None = None,
    ):
        self.restarts = {child.name: 0 for child in children}
        self.pids: dict[str, int] = {}
        self._log, self._record, self._timing = log, record, timing or Timing()
        self._since = datetime.now(UTC)
        self._running = [Running(child, log, self._timing) for child in children]
        self._stopping = False  # not an Event: a signal handler must not wait for a lock

    def children(self) -> dict[str, dict[str, Any]]:
        """Return ``{"pid", "answers", "restarts"}`` by name; ``pid`` is None if it does not run.

        ``answers`` is the result of the last health check, which takes a few seconds to notice a
        process that hangs.
        """
        return {
            running.child.name: {
                "pid": self.pids.get(running.child.name),
                "answers": running.answers,
                "restarts": running.restarts,
            }
            for running in self._running
        }

    def stop(self) -> None:
        """Make ``run`` stop the children and return; from any thread or a signal handler."""
        self._stopping = True

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run the children until SIGTERM, SIGINT or ``stop``; then end them all.

        A child starts when the one before is ready; ``on_ready`` is called once, when all are. A
        child that ends, or is not ready for longer than its patience, is restarted after a pause
        that grows with every restart. A hanging child is restarted only if ``ready`` detects it.

        Raises:
            UserError: a program is not installed; nothing has been started.
        """
        for running in self._running:
            running.find_program()
        with self._signals():
            try:
                announced = False
                while not self._stopping:
                    if self._watch() and not announced:
                        announced = True
                        on_ready()
                    time.sleep(_POLL)
            finally:
                self._end()

    def _watch(self) -> bool:
        """Start, restart and check the children; return whether all have been ready once."""
        for running in self._running:
            if self._stopping:
                return False
            running.watch()
            self._note(running)
            if not running.once_ready:
                return False
        return True

    def _note(self, running: Running) -> None:
        """Publish the pid and the restarts of a child if they have changed."""
        name, process = running.child.name, running.process
        pid = process.pid if process else None
        if (pid, running.restarts) == (self.pids.get(name), self.restarts[name]):
            return
        self.restarts[name] = running.restarts
        if pid is None:
            self.pids.pop(name, None)
        else:
            self.pids[name] = pid
        if self._record:
            try:
                write_record(self._record, self._since, self.pids, self.restarts)
            except OSError as error:
                self._log.warning("%s cannot be written (%s)", self._record, error.strerror)

    def _end(self) -> None:
        deadline = time.monotonic() + self._timing.stop
        for later, running in reversed(list(enumerate(self._running))):
            running.end(deadline - later * self._timing.stop_each)
            self.pids.pop(running.child.name, None)
        if self._record:
            self._record.unlink(missing_ok=True)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT; only the main thread can receive them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        earlier = {kind: signal.signal(kind, stop) for kind in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for kind, handler in earlier.items():
                signal.signal(kind, handler)
