"""The program ``fedpeft``: Ctrl-C ends it with one line, also while it starts and while it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    ended: list[int] = []
    atexit.register(_leave, ended)  # the first that is registered runs last
    heard = signal.getsignal(signal.SIGINT) == signal.default_int_handler  # not below nohup
    if heard:
        signal.signal(signal.SIGINT, _interrupt)
    from fedpeft.cli import app  # imports for half a second

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app.main()
        ended.append(0)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            ended.append(stop.code)
        raise
    except KeyboardInterrupt:  # before or after the command itself
        _interrupt()
    finally:
        if heard:
            signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """End the process at once: no work is lost before the command begins or after it has ended."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def _leave(ended: list[int]) -> None:
    """End the process without the removal of modules, which takes seconds and hears no Ctrl-C."""
    sys.stdout.flush()
    sys.stderr.flush()
    if ended:
        os._exit(ended[0])


if __name__ == "__main__":
    main()
