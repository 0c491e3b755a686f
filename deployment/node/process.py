"""The node's ``flwr-clientapp``: one process for each message, so it imports very little."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clients.folder import NodeFolder
from deployment.flower import run_client_task
from deployment.hosting.logs import start_log
from deployment.tunnel.asking import computing

STATE = "FEDPEFT_NODE_STATE"  # set by `fedpeft node up`


def main() -> None:
    """Answer the message that Flower's arguments in ``sys.argv`` name; log to the node's log.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    if STATE not in os.environ:
        sys.exit(f"{STATE} is not set: start this program through 'fedpeft node up'")
    folder = NodeFolder(Path(os.environ[STATE]))
    start_log(folder.log, "task")
    with computing(folder):
        run_client_task(lambda run: start_log(folder.log, "task", run))


if __name__ == "__main__":
    main()
