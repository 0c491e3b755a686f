"""Run the real apps as a deployment does, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fedpeft.experiment.config import Experiment
from server.app import app as server_app
from simulations.engines.local import run_local
from simulations.simulation import prepare, simulate


def deploy(
    experiment: Experiment,
    states: list[Path],
    resume: bool = False,
    app: ClientApp = client_app,
) -> None:
    """Run the apps as a deployment would; the nodes' ids are 1000, 1001, ..."""
    nodes = [{"state": str(state)} for state in states]
    run_config = {"experiment": experiment.to_toml(), "out": "trial", "resume": int(resume)}
    run_local(server_app, app, nodes, run_config)


def simulated(
    experiment: Experiment, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the result of a simulation, without a server's state folder."""
    monkeypatch.delenv("FEDPEFT_SERVER_STATE")
    return simulate(prepare(experiment, folder / "simulated")[0], experiment)


def read(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text())


def rounds(server: Path) -> list[dict[str, Any]]:
    """Return the lines of the finished rounds of a server's run."""
    lines = (server / "runs" / "trial" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
