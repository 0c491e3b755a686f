"""Parts of a real deployment die in the middle of a round: the run ends right, nothing is lost.

Compared are the bits of the final vector: with the simulation in which exactly those clients
trained that did. Only noise that nobody can draw again has no bits to compare: there the privacy
ledgers are. A worker that has been stopped (SIGSTOP) holds its round open, so that nothing here
depends on being quick.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from ledgerwatch import LedgerWatch, steps_held, steps_told
from replay import Trained, simulated, trained

from simulations.loopback import Deployment, deployment, until
from simulations.processes import kill

pytestmark = pytest.mark.slow
PARTS = {"north": 0, "south": 1}
SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.train_limit=80",
    "task.eval_limit=20",
    "federation.clients=2",
    "federation.rounds=2",
    "federation.node_wait=240",
    "local.steps=200",  # some seconds, to be hit in the middle
    "engine.cohort=1",  # as at a node, to the bit
    "engine.threads=1",
    "output.eval_every=9",
    "output.plots=false",
]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1", "federation.rounds=3"]
EVERYBODY: set[Trained] = {(1, 0), (1, 1), (2, 0), (2, 1)}
DIED = "stopped: the server app died; the same command with --resume goes on from its last round"
Seen = dict[str, int]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Give a server and two nodes, which all tests of this file share."""
    with deployment(tmp_path_factory.mktemp("kills")) as made:
        for name in PARTS:
            made.add_node(name)
            start(made, name)
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the vector of a run that nothing disturbs."""
    return simulated(SETTINGS, tmp_path_factory.mktemp("undisturbed") / "run", EVERYBODY)


@pytest.fixture(scope="module")
def without_north(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the vector of a run in which north misses the first round."""
    folder = tmp_path_factory.mktemp("without_north") / "run"
    return simulated(SETTINGS, folder, EVERYBODY - {(1, 0)})


def start(deployed: Deployment, name: str) -> None:
    deployed.start_node(name, "--partition", str(PARTS[name]), "--backbone", "tiny")


def seen(deployed: Deployment) -> Seen:
    """Return how long the logs are now."""
    return {name: len(deployed.log(name)) for name in ("server", *PARTS)}


def pid_of(deployed: Deployment, name: str, program: str) -> int:
    """Return the process of a server or node that runs a program, once there is just one."""

    def found() -> int:
        pids = deployed.pids(name, program)
        return pids[0] if len(pids) == 1 else 0

    return int(until(found, f"one {program} of {name}"))


@contextmanager
def held(
    deployed: Deployment, run: str, round: int, before: Seen, *names: str, times: int = 1
) -> Iterator[Callable[[str], None]]:
    """Stop nodes' workers in the middle of a training, which is their ``times``-th of the round.

    What is given lets one of them go on; the others do at the end.
    """
    stopped: dict[str, int] = {}

    def go_on(name: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(stopped.pop(name), signal.SIGCONT)

    def all_stopped() -> bool:
        assert deployed.processes[f"run-{run}"].poll() is None, deployed.output(f"run-{run}")
        for name in set(names) - set(stopped):
            if len(deployed.logged(name, f"^train, round {round}: begun", before[name])) == times:
                stopped[name] = pid_of(deployed, name, "clients.worker")
                os.kill(stopped[name], signal.SIGSTOP)
        return len(stopped) == len(names)

    try:
        until(all_stopped, f"round {round} at {' and '.join(names)}")
        for name in names:
            ended = deployed.logged(name, f"^train, round {round}: done", before[name])
            assert len(ended) < times, f"{name} was too quick"
        yield go_on
    finally:
        for name in [*stopped]:
            go_on(name)


def test_worker_and_superlink_killed_the_bits_are_the_same(
    deployed: Deployment, undisturbed: str
) -> None:
    before = seen(deployed)
    deployed.submit("worker", SETTINGS)
    with held(deployed, "worker", 1, before, "north"):
        kill(pid_of(deployed, "north", "clients.worker"))
    with held(deployed, "worker", 2, before, *PARTS):  # in north's by the worker that came back
        kill(pid_of(deployed, "server", "flower-superlink"))
        deployed.wait_for("server", "^ended by signal 9", before["server"])
    result = deployed.finish("worker")
    assert deployed.logged("north", "this process answers itself", before["north"])
    assert [line["failed"] for line in deployed.rounds("worker")] == [[], []]
    assert result["digests"]["vector"] == undisturbed


def test_a_node_is_stopped_and_started_again(deployed: Deployment, without_north: str) -> None:
    before = seen(deployed)
    deployed.submit("stopped", SETTINGS)
    with held(deployed, "stopped", 1, before, *PARTS) as go_on:
        deployed.signal("north", signal.SIGTERM)
        until(lambda: not deployed.pids("north", "clients.task"), "the end of north's message")
        go_on("north")
        assert deployed.processes["north"].wait(30) == 0
        start(deployed, "north")
        deployed.wait_for("server", "Activated node_id", before["server"])
    result = deployed.finish("stopped")
    assert trained(deployed.folder / "stopped") == EVERYBODY - {(1, 0)}
    assert result["digests"]["vector"] == without_north


def test_a_node_loses_power_and_the_process_of_anothers_message_dies(
    deployed: Deployment, without_north: str
) -> None:
    before = seen(deployed)
    # A node that is back before Flower has said it was gone leaves the round to its timeout.
    deployed.submit("power", [*SETTINGS, "federation.timeout=240"])
    with held(deployed, "power", 1, before, *PARTS):
        kill(pid_of(deployed, "south", "clients.task"))
        deployed.kill_tree("north")
    start(deployed, "north")  # at once, while Flower still takes it to be online
    with held(deployed, "power", 1, before, "south", times=2):  # its message is sent once more
        deployed.wait_for("server", "Activated node_id", before["server"])
    result = deployed.finish("power")
    assert deployed.logged("north", "exit code .*; restart", before["north"])
    first, second = deployed.rounds("power")
    assert [failed["client"] for failed in first["failed"]] == [0] and not second["failed"]
    assert trained(deployed.folder / "power") == EVERYBODY - {(1, 0)}
    assert result["digests"]["vector"] == without_north


def test_server_app_supernode_and_server_killed_the_bits_are_the_same(
    deployed: Deployment, undisturbed: str
) -> None:
    before = seen(deployed)
    deployed.submit("resumed", SETTINGS)
    with held(deployed, "resumed", 2, before, "north"):
        kill(pid_of(deployed, "server", "server.task"))
        gone = seen(deployed)
        kill(pid_of(deployed, "north", "flower-supernode"))  # which comes back by itself
    deployed.finish("resumed", expect=1)
    # Let in again: the server takes it for online, and asks it in vain, for up to a minute.
    deployed.wait_for("north", "^SuperNode ID", gone["north"])
    assert DIED in deployed.output("run-resumed")
    assert len(deployed.rounds("resumed")) == 1

    before = seen(deployed)
    deployed.submit("resumed", SETTINGS, "--resume")
    with held(deployed, "resumed", 2, before, "north"):
        deployed.signal("server", signal.SIGKILL)
        deployed.processes["server"].wait()
        deployed.start_server()
    deployed.finish("resumed", expect=1)
    # The second time it says that the run died, or that its server did: whichever is seen first.
    assert deployed.output("run-resumed").count("--resume goes on from its last round") == 2

    deployed.submit("resumed", SETTINGS, "--resume")
    assert deployed.finish("resumed")["digests"]["vector"] == undisturbed
    assert trained(deployed.folder / "resumed") == EVERYBODY
    assert deployed.logged("north", "^ended by signal 9 .* restart")


def test_no_kill_makes_a_privacy_ledger_fall_back(deployed: Deployment) -> None:
    settings, run = [*SETTINGS, *PRIVATE], deployed.state / "runs" / "private"
    nodes = {client: deployed.node(name) for name, client in PARTS.items()}
    with LedgerWatch(run, nodes) as watch:
        deployed.submit("private", settings)
        until(lambda: steps_held(nodes[0]) == 200, "the charge of round 1")
        kill(pid_of(deployed, "north", "clients.worker"))  # this process charges anew
        until(lambda: steps_held(nodes[0]) == 600, "the charge of round 2")
        kill(pid_of(deployed, "server", "flower-superexec"))
        deployed.kill_tree("north")
        start(deployed, "north")
        deployed.finish("private", expect=1)
        assert DIED in deployed.output("run-private")
        deployed.submit("private", settings, "--resume")
        result = deployed.finish("private")
    watch.check()
    assert result["rounds"] == 3 and trained(run) == {(r, c) for r in (1, 2, 3) for c in (0, 1)}
    # Two of the trainings were begun twice, and are paid for twice.
    assert steps_told(run, 2) == [steps_held(nodes[0]), steps_held(nodes[1])] == [1000, 800]
    assert deployed.rounds("private")[-1]["privacy"]["example"]["steps"] == 1000
    said = json.loads((run / "roster.json").read_text())["nodes"]
    assert said[0]["epsilon"]["example"] > said[1]["epsilon"]["example"] > 0
