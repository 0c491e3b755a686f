"""Serve the page of a run from a process beside it: ``python -m simulations.watch.child FOLDER``.

The process prints the page's address and ends when its standard input ends, so it never outlives
the simulation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.page.serve import LOOPBACK
from simulations.watch.serve import PORT, serve


@contextmanager
def watched(folder: Path) -> Iterator[str]:
    """Serve the page of a run's folder while the context is open; yield its address.

    The address is "" if the page cannot be served; the run does not depend on it.
    """
    command = [sys.executable, "-m", "simulations.watch.child", str(folder)]
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C in the terminal is for the simulation, which ends this process.
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main(folder: Path) -> None:
    """Serve the page at the usual port, or at any free one if that is taken."""
    threading.Thread(target=_end_with_input, daemon=True).start()

    def say(address: str, *_: object) -> None:
        print(address, flush=True)

    for port in (PORT, 0):
        try:
            serve([folder], LOOPBACK, port, ready=say)
        except UserError:
            continue
        return


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
