"""Commands of operators start in about a second: they never import torch."""

from __future__ import annotations

import subprocess
import sys

#: The modules that a command imports when it runs.
COMMANDS = {
    "run": "deployment.operator.checks deployment.operator.follow deployment.operator.mirror "
    "simulations.display simulations.plots simulations.results simulations.tracking",
    "server up": "deployment.server_up deployment.operations",
    "server status": "deployment.server.status",
    "node up": "deployment.node.up deployment.node.checks",
    "node status": "deployment.node.status",
    "study status": "simulations.study.status",
    "report": "simulations.report.page simulations.report.runs",
    "watch": "simulations.watch.serve",
    "export, to check its target": "fedpeft.export",
    "a message to a node": "deployment.node.process",
}


def test_no_torch() -> None:
    """In one process, command by command: the first that imports it and all after it are named."""
    code = (
        "import sys, importlib, fedpeft.cli\n"
        f"for command, modules in {COMMANDS!r}.items():\n"
        "    for module in modules.split(): importlib.import_module(module)\n"
        "    if {'torch', 'transformers', 'datasets'} & set(sys.modules): print(command)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []
