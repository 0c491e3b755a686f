"""One process under a supervisor: its start, its health, its output, its end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from fedpeft.errors import UserError
from fedpeft.logs import split_level

_POLL = 0.05  # seconds between two looks at a child that ends
_ASK = 5.0  # seconds between two questions to a child that was ready
_HEALTHY = 60.0  # seconds of health after which a child's pauses begin anew
_STOP_SLOW = 3.0  # seconds to end for a child that was not ready in time
_LONGEST = 4000  # bytes of a line of output that are logged


@dataclass(frozen=True)
class Child:
    """A process to supervise."""

    name: str  # the source of its lines in the log
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to os.environ
    ready: Callable[[], bool] = lambda: True  # its health, asked again and again
    patience: float = 60.0  # seconds that it may be not ready, else it is started anew
    # Level and message of a line of its output; None drops the line.
    read: Callable[[str], tuple[int, str] | None] = split_level


class Running:
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
        self._asked = 0.0  # for its health, the last time
        self._ill_since: float | None = None
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
            self._ask_again(now)
        elif self.child.ready():
            self._ready_since = self._asked = now
            self.once_ready = True
            self._say(logging.INFO, f"ready (pid {self.process.pid})")
        elif now - self._started > self.child.patience:
            self.end(now + _STOP_SLOW)
            self._plan_restart(f"not ready within {self.child.patience:g} s")

    def _ask_again(self, now: float) -> None:
        """Look after the health of a child that was ready."""
        assert self._ready_since is not None  # for mypy
        if now - self._ready_since > _HEALTHY:
            self._failures = 0
        if now - self._asked < _ASK:
            return
        ill = not self.child.ready()
        self._asked = time.monotonic()  # the answer may have taken a while
        self._ill_since = (self._ill_since or self._asked) if ill else None
        if self._ill_since is not None and self._asked - self._ill_since > self.child.patience:
            self.end(self._asked + _STOP_SLOW)
            self._plan_restart(f"did not answer for {self.child.patience:g} s")

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
            time.sleep(_POLL)
        if self._reader is not None:
            self._reader.join(timeout=1)  # its last words

    def _start(self) -> None:
        self._started, self._ready_since, self._ill_since = time.monotonic(), None, None
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
