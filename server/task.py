"""What a server runs as ``flwr-serverapp``: one process for each run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedpeft.logs import start_log
from server.flower import run_task

STATE = "FEDPEFT_SERVER_STATE"  # set by `fedpeft server up`


def main() -> None:
    """Run the ServerApp, as Flower's ``sys.argv`` asks; log to the server's log.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    if STATE not in os.environ:
        sys.exit(f"{STATE} is not set: this program is started by fedpeft server up")
    log = Path(os.environ[STATE]) / "server.log"
    start_log(log, "run")
    run_task(lambda run: start_log(log, "run", run))


if __name__ == "__main__":
    main()
