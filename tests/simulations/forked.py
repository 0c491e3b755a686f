"""`fedpeft` in real processes, forked from one that has imported torch: each starts at once.

Importing it takes seconds, which tests with many starts would spend again and again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dying import die_at

from deployment.processes import alive


class Forks:
    """The process that forks the others, one at a time."""

    def __init__(self, cwd: Path):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=cwd,
            text=True,
        )

    def start(
        self, arguments: Sequence[str], printed: Path, death: tuple[str, int, int] | None = None
    ) -> Forked:
        """Start `fedpeft` with arguments; it appends its output to the file ``printed``.

        ``death``: arguments of ``dying.die_at`` for the new process.
        """
        assert self.server.stdin and self.server.stdout
        self.server.stdin.write(json.dumps([[*arguments], str(printed), death]) + "\n")
        self.server.stdin.flush()
        return Forked(self, int(self.server.stdout.readline()))

    def end(self) -> None:
        """End the process and its last fork."""
        self.server.kill()
        self.server.communicate()


class Forked:
    """A process that was forked, with the methods of ``subprocess.Popen``."""

    def __init__(self, forks: Forks, pid: int):
        self.pid, self.returncode, self._forks = pid, None, forks

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        if self.returncode is None and not alive(self.pid):
            assert self._forks.server.stdout
            self.returncode = int(self._forks.server.stdout.readline())
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it runs longer.
        """
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fedpeft", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def serve() -> None:
    """Fork for each line of the standard input; answer its pid and later its exit code."""
    import simulations.plots
    import simulations.simulation
    from fedpeft.cli.app import main

    assert simulations.plots and simulations.simulation
    for line in sys.stdin:
        arguments, printed, death = json.loads(line)
        pid = os.fork()
        if not pid:
            # A background job of a shell ignores Ctrl-C, and so would what it starts.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with open(printed, "ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            if death:
                die_at(*death)
            main(arguments)
            sys.exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
