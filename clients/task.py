"""What a node runs as ``flwr-clientapp``: one process for each message, so nothing heavy here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clients.flower import run_task
from fedpeft.logs import start_log

STATE = "FEDPEFT_NODE_STATE"  # set by `fedpeft node up`


def main() -> None:
    """Answer one message, as Flower's ``sys.argv`` asks; log to the node's log.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    if STATE not in os.environ:
        sys.exit(f"{STATE} is not set: this program is started by fedpeft node up")
    log = Path(os.environ[STATE]) / "node.log"
    start_log(log, "task")
    run_task(lambda run: start_log(log, "task", run))


if __name__ == "__main__":
    main()
