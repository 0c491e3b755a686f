"""The supervisor: starts a server's or a node's processes, restarts what ends, stops them all."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from fedpeft.errors import UserError
from fedpeft.logs import split_level

_POLL = 0.1  # seconds between two looks at the children
_HEALTHY = 60.0  # seconds of health after which a child's pauses begin anew
_STOP = 10.0  # seconds that all children together have to end by themselves
_STOP_EACH = 1.0  # seconds of it that are kept for each child that is stopped later
_STOP_SLOW = 3.0  # seconds to end for a child that was not ready in time
_LONGEST = 4000  # bytes of a line of output that are logged


@dataclass(frozen=True)
class Child:
    """A process to supervise."""

    name: str  # the source of its lines in the log
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to os.environ
    ready: Callable[[], bool] = lambda: True  # its health, asked again and again
    patience: float = 60.0  # seconds until it must be ready, else it is started anew
    # Level and message of a line of its output; None drops the line.
    read: Callable[[str], tuple[int, str] | None] = split_level


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
        self._running = [_Running(child, log, backoff) for child in children]
        self._stopping = False  # not an Event: a signal handler must not wait for a lock

    def stop(self) -> None:
        """Make ``run`` stop the children and return; from any thread or a signal handler."""
        self._stopping = True

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run the children until SIGTERM, SIGINT or ``stop``; then end them all, within 15 s.

        The next child is started when the one before is ready; ``on_ready`` is called once, when
        all are. A child that ends, or is not ready in time, is started again after a pause that
        grows from restart to restart.

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


class _Running:
    """A child's life: waiting for its start, running, ready."""

    def __init__(self, child: Child, log: logging.Logger, backoff: Sequence[float]):
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.once_ready = False
        self.restarts = 0
        self._log, self._backoff = log, backoff
        self._command = list(child.command)
        self._environment = {**os.environ, **child.environment}
        self._failures = 0  # ends since the last minute of health
        self._start_at = 0.0  # all times are of time.monotonic
        self._started = 0.0
        self._ready_since: float | None = None
        self._reader: threading.Thread | None = None

    def find_program(self) -> None:
        """Find the child's program once, so that a missing one is the user's mistake."""
        name = self.child.command[0]
        program = shutil.which(name, path=self._environment.get("PATH"))
        if program is None:
            raise UserError(f"{self.child.name}: the program '{name}' is not installed")
        self._command = [program, *self.child.command[1:]]
        if setpriv := shutil.which("setpriv"):
            self._command = [setpriv, "--pdeathsig", "TERM", "--", *self._command]

    def watch(self) -> None:
        """Do what the child needs now: a start, a look at its health, or a restart later."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self._start()
        elif self.process.poll() is not None:
            self._plan_restart(_how_it_ended(self.process.returncode))
        elif self._ready_since is not None:
            if now - self._ready_since > _HEALTHY:
                self._failures = 0
        elif self.child.ready():
            self._ready_since = now
            self.once_ready = True
            self._say(logging.INFO, f"ready (pid {self.process.pid})")
        elif now - self._started > self.child.patience:
            self.end(now + _STOP_SLOW)
            self._plan_restart(f"not ready within {self.child.patience:g} s")

    def end(self, deadline: float) -> None:
        """End the child and its process group: SIGTERM, at ``deadline`` SIGKILL."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # Its own children may need a moment longer than itself.
        while process.poll() is None or _alive(process.pid):
            if time.monotonic() > deadline:
                how = "did not end by itself" if process.poll() is None else "left processes"
                self._say(logging.WARNING, f"{how}: killed")
                _kill_group(process.pid)
                process.wait()
                break
            time.sleep(_POLL / 2)
        if self._reader is not None:
            self._reader.join(timeout=1)  # its last words

    def _start(self) -> None:
        self._started, self._ready_since = time.monotonic(), None
        try:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._plan_restart(f"cannot be started ({error.strerror})")
            return
        assert self.process.stdout is not None  # for mypy: a pipe was asked for
        self._reader = threading.Thread(
            target=self._read, args=(self.process.stdout,), daemon=True, name=self.child.name
        )
        self._reader.start()

    def _plan_restart(self, reason: str) -> None:
        if self.process is not None:
            _kill_group(self.process.pid)  # what a dead child has started would be in the way
        self.process = None
        pause = self._backoff[min(self._failures, len(self._backoff) - 1)]
        self._failures += 1
        self.restarts += 1
        self._start_at = time.monotonic() + pause
        self._say(logging.WARNING, f"{reason}; restart {self.restarts} in {pause:g} s")

    def _read(self, output: IO[bytes]) -> None:
        """Log the child's output line by line until it and its children have closed it."""
        with output:
            whole = True  # whether the last piece ended its line
            while piece := output.readline(_LONGEST):
                start, whole = whole, piece.endswith(b"\n")
                if not start:
                    continue  # the rest of a line that was too long
                cut = "" if whole or len(piece) < _LONGEST else " ..."
                text = piece.decode(errors="replace").rstrip() + cut
                found = self.child.read(text)
                if found and found[1]:
                    self._say(*found)

    def _say(self, level: int, message: str) -> None:
        self._log.log(level, "%s", message, extra={"source": self.child.name})


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"ended by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
