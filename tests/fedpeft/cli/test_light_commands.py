"""A command loads what it needs: those of operators no torch, a simulation no deployment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from fedpeft.cli.app import command_line

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


def test_a_simulation_loads_nothing_of_a_deployment(tmp_path: Path) -> None:
    settings = (
        *("backbone=tiny", "task.train_limit=16", "task.eval_limit=8", "method.d=8"),
        *("federation.clients=2", "federation.rounds=1", "output.plots=false"),
    )
    options = [word for setting in settings for word in ("-s", setting)]
    code = (
        "import sys; from fedpeft.cli.app import main\n"
        f"main({['simulate', '--out', str(tmp_path / 'run'), *options]!r})\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(loaded & {'simulations', 'flwr', *sys.argv[1:]}))"
    )
    unwanted = ("deployment", "starlette", "fastapi", "uvicorn")
    command = [sys.executable, "-c", code, *unwanted]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "flwr simulations"


@pytest.mark.parametrize("arguments", [["simulate"], ["study", "run"], ["keys", "init"]])
def test_a_command_is_loaded_without_the_others(arguments: list[str]) -> None:
    program = typer.main.get_command(command_line(arguments))
    assert isinstance(program, click.Group) and [*program.commands] == arguments[:1]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["simulat"]])
def test_without_a_command_all_are_loaded(arguments: list[str]) -> None:
    """Help lists them, and a misspelled one is compared with them."""
    program = typer.main.get_command(command_line(arguments))
    assert isinstance(program, click.Group)
    assert {"simulate", "predict", "keys", "trial"} <= {*program.commands}
