"""A deployment with real processes: keys, server, two nodes, and a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment.loopback import Deployment, deployment, run
from deployment.processes import alive, descendants
from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from simulations.simulation import prepare, simulate

DATA = ("--labels", "negative,positive", "--data")
pytestmark = pytest.mark.long


@pytest.fixture
def deployed(tmp_path: Path, data_folders: list[Path]) -> Iterator[Deployment]:
    """Start a server with two nodes that have different data."""
    with deployment(tmp_path) as made:
        for name, data in zip(("north", "south"), data_folders, strict=True):
            made.add_node(name)
            made.start_node(name, *DATA, str(data), "--backbone", "tiny")
        yield made


def test_a_run_on_two_nodes_has_the_bits_of_the_simulation(
    deployed: Deployment, tmp_path: Path, settings: list[str], pooled: list[str]
) -> None:
    result = deployed.run("first", settings)
    experiment = planned(Experiment.load("", [*settings, *pooled]))
    assert experiment.head.start == "sums"
    expected = simulate(prepare(experiment, tmp_path / "simulated")[0], experiment)
    assert result["digests"]["vector"] == expected["digests"]["vector"]
    assert result["score"] == expected["score"]
    assert expected["bytes"]["wire"] is None
    for way in ("up", "down"):
        wire, message = result["bytes"]["wire"][way], result["bytes"][way]["message"]
        assert message < wire < 100 * message
    clients = {line["client"] for line in deployed.sent("first") if line["kind"] == "wire"}
    assert clients == {0, 1}
    home, there = tmp_path / "first", deployed.state / "runs" / "first"
    for name in ("result.json", "rounds.jsonl", "bytes.jsonl", "vector.safetensors"):
        assert (home / name).read_bytes() == (there / name).read_bytes()
    assert "after 3 rounds" in deployed.output("run-first")

    status = json.loads(run("server", "status", "--state", str(deployed.state), "--json"))
    assert {node["name"] for node in status["nodes"]} == {"north", "south"}
    below = [
        pid for name in ("server", "north") for pid in descendants(deployed.processes[name].pid)
    ]
    assert len(below) >= 6, "Flower's two and ours of each"
    assert deployed.stop("north") == 0
    assert deployed.stop("server") == 0
    assert not [pid for pid in below if alive(pid)]
