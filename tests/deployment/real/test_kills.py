"""Kill parts of a real deployment during a round: the run still ends with the right result.

Kills of SuperLink and ServerApp: test_gate.

The final vector is compared bit for bit with a simulation in which the same clients train. With
secret noise, the privacy ledgers are compared instead. A training that waits at its gate keeps its
round open, so that no test depends on speed.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path

import disturbed
import pytest
from disturbed import DIED, PARTS, gates, pid_of, seen, start
from ledgerwatch import LedgerWatch, steps_held, steps_reported
from replay import Trained, simulated, trained

from deployment.loopback import Deployment, until
from deployment.processes import kill
from fedpeft.files import read_object

pytestmark = pytest.mark.long
SETTINGS = [*disturbed.SETTINGS, "federation.rounds=2", "local.steps=200"]  # hit in the middle
SETTINGS += ["wire.up=eden1", "wire.down=delta1"]  # nodes keep a vector between rounds
SLOPES = ["wire.up=scalars", "wire.down=scalars", "local.perturbations=2", "local.optimizer=sgd"]
SLOPES += ["local.max_grad_norm=0", "local.lr=0.001"]
PRIVATE = [*disturbed.PRIVATE, "federation.rounds=3"]
EVERYBODY: set[Trained] = {(1, 0), (1, 1), (2, 0), (2, 1)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the vector of an undisturbed run."""
    return simulated(SETTINGS, tmp_path_factory.mktemp("undisturbed") / "run", EVERYBODY)


@pytest.fixture(scope="module")
def without_north(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the vector of a run in which north misses the first round."""
    folder = tmp_path_factory.mktemp("without_north") / "run"
    return simulated(SETTINGS, folder, EVERYBODY - {(1, 0)})


def test_gateway_killed_at_any_moment_loses_nothing(deployed: Deployment, undisturbed: str) -> None:
    """While messages are on their way, while nodes train, and while replies are."""
    before = seen(deployed)
    moments = random.Random(0)

    def strike() -> None:
        time.sleep(moments.uniform(0, 3))
        kill(pid_of(deployed, "server", "deployment.gateway"))

    with gates(deployed, "gateway", "north") as gate:
        deployed.submit("gateway", SETTINGS)
        strike()
        gate.begun(0, "north")
        gate.next("north")
        gate.begun(1, "north")
        strike()
        gate.next("north")
        strike()
        gate.begun(2, "north")
        strike()
    result = deployed.finish("gateway")
    assert [line["failed"] for line in deployed.rounds("gateway")] == [[], []]
    assert len(deployed.logged("server", "^ended by signal 9", before["server"])) == 4
    assert trained(deployed.folder / "gateway") == EVERYBODY
    assert result["digests"]["vector"] == undisturbed


def test_a_node_restarted_during_a_round_misses_only_that_round(
    deployed: Deployment, without_north: str
) -> None:
    before = seen(deployed)
    with gates(deployed, "stopped", *PARTS) as gate:
        deployed.submit("stopped", SETTINGS)
        gate.begun(0, *PARTS)
        gate.next(*PARTS)
        gate.begun(1, *PARTS)
        assert deployed.stop("north") == 0
        start(deployed, "north")
        deployed.wait_for("server", "Activated node_id", before["server"])
    result = deployed.finish("stopped")
    assert trained(deployed.folder / "stopped") == EVERYBODY - {(1, 0)}
    assert result["digests"]["vector"] == without_north


def test_a_node_that_loses_power_misses_only_that_round(
    deployed: Deployment, without_north: str
) -> None:
    before, progress = seen(deployed), deployed.state / "runs" / "power" / "progress.json"
    with gates(deployed, "power", *PARTS) as gate:
        deployed.submit("power", SETTINGS)
        gate.begun(0, *PARTS)
        gate.next(*PARTS)
        gate.begun(1, *PARTS)
        kill(pid_of(deployed, "south", "deployment.node.process"))
        deployed.kill_tree("north")
        # A node that is back before Flower has said it was gone leaves the round to its timeout.
        until(lambda: read_object(progress).get("done") == 1, "the end of north's message")
        gate.begun(1, "south", times=2)  # its message is sent once more
        start(deployed, "north")
        deployed.wait_for("server", "Activated node_id", before["server"])
    result = deployed.finish("power")
    first, second = deployed.rounds("power")
    assert [failed["client"] for failed in first["failed"]] == [0] and not second["failed"]
    assert trained(deployed.folder / "power") == EVERYBODY - {(1, 0)}
    assert result["digests"]["vector"] == without_north


def test_killing_server_supernode_and_worker_does_not_change_the_bits(
    deployed: Deployment, tmp_path: Path
) -> None:
    """With slopes both ways; a node that has lost its vector gets all slopes again."""
    settings = [*SETTINGS, *SLOPES]
    with gates(deployed, "resumed", *PARTS) as gate:
        deployed.submit("resumed", settings)
        gate.begun(0, *PARTS)
        gate.next(*PARTS)
        gate.begun(1, *PARTS)
        gate.next(*PARTS)
        gate.begun(2, *PARTS)
        gone = seen(deployed)
        kill(pid_of(deployed, "south", "deployment.node.worker"))
        kill(pid_of(deployed, "north", "flower-supernode"))  # which comes back by itself
        deployed.signal("server", signal.SIGKILL)
        deployed.processes["server"].wait()
        deployed.start_server()
    deployed.finish("resumed", expect=1)
    # The command says that the run died, or that the server did: whichever it sees first.
    assert "--resume continues after its last round" in deployed.output("run-resumed")
    assert len(deployed.rounds("resumed")) == 1
    # The server takes north for online, and asks it in vain, for up to a minute.
    deployed.wait_for("north", "^SuperNode ID", gone["north"])
    assert deployed.logged("north", "^ended by signal 9 .* restart", gone["north"])
    with gates(deployed, "resumed", "south"):
        for kept in ("kept", "attempts"):  # so that south needs the slopes again, and trains
            shutil.rmtree(deployed.node("south") / kept)
    deployed.submit("resumed", settings, "--resume")
    result = deployed.finish("resumed")
    assert trained(deployed.folder / "resumed") == EVERYBODY
    assert result["digests"]["vector"] == simulated(settings, tmp_path / "run", EVERYBODY)


def test_kills_before_in_and_after_the_start_do_not_change_the_bits(
    deployed: Deployment, tmp_path: Path
) -> None:
    """The sums of a node are those it has stored; the head that they make is never made again."""
    run = deployed.state / "runs" / "start"
    with gates(deployed, "start", *PARTS) as gate:
        deployed.submit("start", SETTINGS)
        gate.begun(0, *PARTS)
        kill(pid_of(deployed, "south", "deployment.node.worker"))
        gate.next("north")  # which has stored its sums
        kill(pid_of(deployed, "server", "deployment.server.process"))
    deployed.finish("start", expect=1)
    assert DIED in deployed.output("run-start") and not (run / "start.json").exists()
    with gates(deployed, "start", *PARTS) as gate:
        deployed.submit("start", SETTINGS, "--resume")
        gate.begun(0, *PARTS)
        gate.next(*PARTS)
        gate.begun(1, *PARTS)
        score = (run / "start.json").read_bytes()
        kill(pid_of(deployed, "server", "deployment.server.process"))
    deployed.finish("start", expect=1)
    deployed.submit("start", SETTINGS, "--resume")
    result = deployed.finish("start")
    assert (run / "start.json").read_bytes() == score
    asked = [line["client"] for line in deployed.sent("start") if line["kind"] == "start"]
    assert sorted(asked) == [0, 1]
    assert trained(deployed.folder / "start") == EVERYBODY
    assert result["digests"]["vector"] == simulated(SETTINGS, tmp_path / "run", EVERYBODY)


def test_killing_a_node_never_loses_a_privacy_charge(deployed: Deployment) -> None:
    settings, run = [*SETTINGS, *PRIVATE], deployed.state / "runs" / "private"
    nodes = {client: deployed.node(name) for name, client in PARTS.items()}
    paid = [steps_held(nodes[0]), steps_held(nodes[1])]
    with LedgerWatch(run, nodes) as watch:
        with gates(deployed, "private", "south") as gate:  # which keeps the first round open
            deployed.submit("private", settings)
            until(lambda: steps_held(nodes[0]) == paid[0] + 200, "the charge of round 1")
            kill(pid_of(deployed, "north", "deployment.node.worker"))
            gate.answered(1, "north")
            gate.shut("north")  # which keeps the second round open
            gate.open("south")
            gate.answered(1, "south")
            gate.shut("south")  # which keeps the third round open, if not the second
            gate.open("north")
            until(lambda: steps_held(nodes[0]) >= paid[0] + 400, "the charge of round 2")
            kill(pid_of(deployed, "server", "flower-superexec"))
            deployed.kill_tree("north")
            start(deployed, "north")
        deployed.finish("private", expect=1)
        assert DIED in deployed.output("run-private")
        deployed.submit("private", settings, "--resume")
        result = deployed.finish("private")
    watch.check()
    assert result["rounds"] == 3 and trained(run) == {(r, c) for r in (1, 2, 3) for c in (0, 1)}
    # Some trainings were begun twice; none is paid for twice.
    held = [steps_held(nodes[0]), steps_held(nodes[1])]
    assert steps_reported(run, 2) == held == [before + 600 for before in paid]
    assert deployed.rounds("private")[-1]["privacy"]["example"]["steps"] == max(held)
    roster = json.loads((run / "roster.json").read_text())["nodes"]
    assert min(node["epsilon"]["example"] for node in roster) > 0
