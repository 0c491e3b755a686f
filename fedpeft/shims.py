"""Programs under the names by which Flower starts its tasks, so that ours run instead.

Flower starts a task by the name of a command, looked up in PATH, where the folder of these scripts
stands first.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from fedpeft.files import PROGRAM, write_together

#: All that Flower starts; a contract test keeps the list whole. Some of them install a bundle,
#: or run what it names, without our check: an agent's task is enough to run any code.
FLOWER_TASKS = (
    "flwr-agentapp",
    "flwr-clientapp",
    "flwr-connector",
    "flwr-model",
    "flwr-serverapp",
    "flwr-simulation",
)


def write_shims(folder: Path, names: Mapping[str, str]) -> None:
    """Write a script into ``folder`` (made 0700 if missing) for each of Flower's tasks.

    ``names`` says which module stands for which command (``{"flwr-clientapp": "clients.task"}``)
    and gets its arguments. Every other command of Flower's is refused with a line on the standard
    error: were it missing here, Flower's own would be found further down in PATH.
    """
    files = {}
    for name in sorted({*FLOWER_TASKS, *names}):
        if name in names:
            # -P: the working directory is not a place to import from.
            line = f'exec {shlex.quote(sys.executable)} -P -m {shlex.quote(names[name])} "$@"'
        else:
            line = f"echo 'ERROR: refused: fedpeft runs no {name}' >&2\nexit 1"
        files[folder / name] = (f"#!/bin/sh\n{line}\n".encode(), PROGRAM)
    write_together(files, replace=True)


def environment(state: Path) -> dict[str, str]:
    """Return what Flower's processes find in their environment, besides what is there.

    Args:
        state: folder of the server or node; our scripts are in its ``bin``, Flower's own files
            in its ``flwr``.
    """
    places = [str(state / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    direct = [os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")), "127.0.0.1,localhost"]
    return {
        "FLWR_HOME": str(state / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
        # They meet on loopback, which a site's proxy for the way out cannot reach.
        "no_proxy": ",".join(filter(None, direct)),
    }
