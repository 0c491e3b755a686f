"""Scripts that replace the programs which Flower starts for its tasks.

Flower starts programs by name, and the folder of these scripts comes first in PATH.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from fedpeft.files import PROGRAM, write_together

#: All commands that Flower starts; a contract test keeps the list complete. Some of them install a
#: bundle or run its code without our check, for example the task of an agent.
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

    A command in ``names`` runs the module given there with the command's arguments, as in
    ``{"flwr-clientapp": "deployment.node.process"}``. Every other command prints a refusal and
    fails; without a script, Flower's own program further down in PATH would run.
    """
    files = {}
    for name in sorted({*FLOWER_TASKS, *names}):
        if name in names:
            # -P: import nothing from the working directory.
            line = f'exec {shlex.quote(sys.executable)} -P -m {shlex.quote(names[name])} "$@"'
        else:
            line = f"echo 'ERROR: refused: fedpeft runs no {name}' >&2\nexit 1"
        files[folder / name] = (f"#!/bin/sh\n{line}\n".encode(), PROGRAM)
    write_together(files, replace=True)


def environment(state: Path) -> dict[str, str]:
    """Return the environment variables to set for Flower's processes.

    Args:
        state: folder of the server or node; its ``bin`` holds the scripts, its ``flwr`` Flower's
            files.
    """
    folders = [str(state / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        **direct(),
        "FLWR_HOME": str(state / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join(filter(None, folders)),
        "PYTHONUNBUFFERED": "1",
    }


def direct() -> dict[str, str]:
    """Return variables with which a process reaches loopback without a proxy.

    A site's proxy cannot reach it.
    """
    given = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    names = ",".join(filter(None, [given, "127.0.0.1,localhost,::1"]))
    return dict.fromkeys(("no_proxy", "NO_PROXY"), names)
