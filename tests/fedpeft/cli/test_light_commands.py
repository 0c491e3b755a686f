"""Commands of operators start in about a second: they never import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The modules that a command imports when it runs.
COMMANDS = {
    "run": "server.remote.checks server.remote.follow server.remote.mirror simulations.display "
    "simulations.plots simulations.results simulations.tracking",
    "server up": "server.host.up server.host.operations",
    "server status": "server.host.status",
    "node up": "clients.node clients.checks",
    "node status": "clients.status",
    "study status": "simulations.study.status",
    "report": "simulations.report.page simulations.report.runs",
    "watch": "simulations.watch.serve",
    "export, to check its target": "fedpeft.export",
    "a message to a node": "clients.process",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_torch(command: str) -> None:
    code = (
        f"import sys, fedpeft.cli, {', '.join(COMMANDS[command].split())}\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
