"""Programs under the names by which Flower starts its tasks, so that ours run instead.

Flower starts a task by the name of a command, looked up in PATH: put a folder of these scripts
in front of it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from fedpeft.ownfiles import PROGRAM, write_together

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
