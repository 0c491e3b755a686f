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

from deployment.hosting.logs import split_level
from deployment.hosting.timing import Timing
from fedpeft.errors import UserError

_POLL = 0.05  # seconds between two checks of a child that is ending
_HEALTHY = 60.0  # seconds of health after which the pauses before restarts are short again
_STOP_SLOW = 3.0  # seconds in which a child that does not answer has to end
_LONGEST = 4000  # bytes of a line of output that are logged


@dataclass(frozen=True)
class Child:
    """A process to supervise.

    Attributes:
        name: source of its lines in the log.
        command: program and arguments.
        environment: variables to set in addition to those of this process.
        ready: health check, called repeatedly.
        patience: seconds that ``ready`` may return False before the child is restarted.
        read: returns level and message of a line of output, or None to drop the line.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    patience: float = 60.0
    read: Callable[[str], tuple[int, str] | None] = split_level


class Running:
    """A child under supervision: waiting for its start, running, ready."""

    def __init__(self, child: Child, log: logging.Logger, timing: Timing):
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.once_ready = False
        self.restarts = 0
        self._log, self._timing = log, timing
        self._command = list(child.command)
        self._environment = {**os.environ, **child.environment}
        self._failures = 0  # ends since it was last healthy for long
        self._start_at = 0.0  # all times are of time.monotonic
        self._ready_since: float | None = None
        self._failing_since: float | None = None  # time of the first failed health check in a row
        self._asked = 0.0  # last health check
        self._reader: threading.Thread | None = None

    @property
    def answers(self) -> bool:
        """Whether it runs, and its last health check succeeded."""
        ready = self._ready_since is not None and self._failing_since is None
        return self.process is not None and ready

    def find_program(self) -> None:
        """Look up the child's program before anything is started.

        Raises:
            UserError: it is not installed.
        """
        name = self.child.command[0]
        program = shutil.which(name, path=self._environment.get("PATH"))
        if program is None:
            raise UserError(f"{self.child.name}: the program '{name}' is not installed")
        self._command = [program, *self.child.command[1:]]
        if setpriv := shutil.which("setpriv"):
            self._command = [setpriv, "--pdeathsig", "TERM", "--", *self._command]

    def watch(self) -> None:
        """Start the child, check its health, or plan its restart, as needed now."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self._start()
        elif self.process.poll() is not None:
            self._plan_restart(_how_it_ended(self.process.returncode))
        elif self._ready_since is None or now - self._asked >= self._timing.health:
            self._check(self.process.pid)

    def _check(self, pid: int) -> None:
        """Check the child's health; restart it after too many failures."""
        ready = self.child.ready()
        now = self._asked = time.monotonic()  # the check may take a while
        if not ready:
            self._failing_since = self._failing_since or now
            if now - self._failing_since > self.child.patience:
                self.end(now + _STOP_SLOW)
                how = "not ready within" if self._ready_since is None else "did not answer for"
                self._plan_restart(f"{how} {self.child.patience:g} s")
            return
        self._failing_since = None
        if self._ready_since is None:
            self._ready_since, self.once_ready = now, True
            self._say(logging.INFO, f"ready (pid {pid})")
        elif now - self._ready_since > _HEALTHY:
            self._failures = 0

    def end(self, deadline: float) -> None:
        """End the child and its process group: SIGTERM now, SIGKILL at ``deadline``."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # The processes it started may need longer than the child itself.
        while process.poll() is None or _alive(process.pid):
            if time.monotonic() > deadline:
                how = "did not end by itself" if process.poll() is None else "left processes"
                self._say(logging.WARNING, f"{how}: killed")
                _kill_group(process.pid)
                process.wait()
                break
            time.sleep(_POLL)
        if self._reader is not None:
            self._reader.join(timeout=1)  # log the rest of its output

    def _start(self) -> None:
        self._ready_since, self._failing_since = None, time.monotonic()
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
            _kill_group(self.process.pid)  # processes that a dead child left could hold its ports
        self.process = None
        pauses = self._timing.restarts
        pause = pauses[min(self._failures, len(pauses) - 1)]
        self._failures += 1
        self.restarts += 1
        self._start_at = time.monotonic() + pause
        self._say(logging.WARNING, f"{reason}; restart {self.restarts} in {pause:g} s")

    def _read(self, output: IO[bytes]) -> None:
        """Log the output line by line until the child and its processes have closed it."""
        with output:
            ended = True  # whether the last piece ended its line
            while piece := output.readline(_LONGEST):
                starts, ended = ended, piece.endswith(b"\n")
                if not starts:
                    continue  # the rest of a line that was too long
                cut = "" if ended or len(piece) < _LONGEST else " ..."
                line = self.child.read(piece.decode(errors="replace").rstrip() + cut)
                if line and line[1]:
                    self._say(*line)

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
