"""The server's ``flwr-serverapp`` program: one process for each run."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from fedpeft.hosting.bundle import run_name
from fedpeft.hosting.logs import start_log
from server.deployed import starting
from server.flower import run_task
from server.registry import STATE, state_folder


def main() -> None:
    """Run the ServerApp with Flower's arguments in ``sys.argv``; log to the server's log.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    state = state_folder()
    if state is None:
        sys.exit(f"{STATE} is not set: start this program through 'fedpeft server up'")
    log = state / "server.log"
    start_log(log, "run")
    with ExitStack() as stack:
        run_task(
            lambda run: start_log(log, "run", run),
            lambda run, settings: stack.enter_context(starting(state, run_name(settings), run)),
        )


if __name__ == "__main__":
    main()
