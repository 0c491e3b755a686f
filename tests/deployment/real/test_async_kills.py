"""Kill server and nodes of a real deployment during an asynchronous run.

In a deployment the order of asynchronous replies depends on speed, so the bits are not compared:
every round is there once, every reply counts once, and every training is charged once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import disturbed
import pytest
from disturbed import PARTS, gates, is_offline, pid_of, start
from ledgerwatch import LedgerWatch, steps_held, steps_reported

from clients.folder import NodeFolder
from deployment.loopback import Deployment, until
from deployment.processes import kill
from fedpeft.privacy.ledger import read_ledger

pytestmark = pytest.mark.long
ROUNDS, STEPS = 5, 200
SETTINGS = [*disturbed.SETTINGS, *disturbed.PRIVATE, f"federation.rounds={ROUNDS}"]
SETTINGS += [f"local.steps={STEPS}", "federation.mode=async", "federation.buffer=1"]
DIED = "--resume continues after its last round"


def replies(deployed: Deployment, run: str) -> Counter[int]:
    """Return how many updates of each client the server took, from a run's byte ledger."""
    lines = [line for line in deployed.sent(run) if line["kind"] == "train" and "up" in line]
    return Counter(line["client"] for line in lines if line["up"]["payload"])  # errors have none


def assert_rounds_and_bytes(deployed: Deployment, run: str, result: dict[str, object]) -> None:
    """Check that each round is there once, and that its bytes are those of its messages."""
    rounds, sent = deployed.rounds(run), deployed.sent(run)
    assert [line["round"] for line in rounds] == [*range(1, ROUNDS + 1)]
    keys = [(line["round"], line["kind"], line["client"]) for line in sent]
    assert len(keys) == len({*keys})
    vector = 4 * int(str(result["vector_size"]))
    for line in rounds:
        trained = [s for s in sent if (s["round"], s["kind"]) == (line["round"], "train")]
        up = [each["up"] for each in trained if "up" in each]
        # One vector from each client of the round: no reply is counted twice.
        assert [s["payload"] for s in up if s["payload"]] == [vector] * line["clients"]
        for way in ("down", "up"):
            of_round = [each[way] for each in trained if way in each]
            for size in ("payload", "message"):
                assert line["bytes"][way][size] == sum(each[size] for each in of_round)
    total: dict[str, dict[str, int]] = result["bytes"]  # type: ignore[assignment]
    for way in ("down", "up"):
        assert total[way]["payload"] == sum(line["bytes"][way]["payload"] for line in rounds)


def charged(deployed: Deployment) -> dict[int, int]:
    """Return the steps in each client's ledger, also of the runs before."""
    return {client: steps_held(deployed.node(name)) for name, client in PARTS.items()}


def assert_ledgers(
    deployed: Deployment, run: str, before: dict[int, int], lost: Counter[int]
) -> None:
    """Check that each training was charged once: those with a reply, and those that were lost."""
    reported = steps_reported(deployed.state / "runs" / run, len(PARTS))
    count, held = replies(deployed, run), charged(deployed)
    for name, client in PARTS.items():
        charges = read_ledger(NodeFolder(deployed.node(name)).ledger).charges
        trained = [(charge.run, charge.round) for charge in charges]
        assert len(trained) == len({*trained}), f"{name} was charged twice for a round: {trained}"
        assert reported[client] == before[client] + STEPS * (count[client] + lost[client])
        # The last training may have begun when the run ended.
        assert held[client] - reported[client] in (0, STEPS)
    # A client that trains when the run ends counts as if it had trained in every round.
    most = deployed.rounds(run)[-1]["privacy"]["example"]["steps"]
    assert most == max(STEPS * ROUNDS, *reported)


def test_an_asynchronous_run_survives_kills_of_server_app_and_server(deployed: Deployment) -> None:
    run, spent = deployed.state / "runs" / "app", charged(deployed)
    nodes = {client: deployed.node(name) for name, client in PARTS.items()}
    with LedgerWatch(run, nodes) as watch:
        with gates(deployed, "app", *PARTS) as gate:
            deployed.submit("app", SETTINGS)
            gate.begun(1, *PARTS)
            gate.next("south", "south")
            gate.begun(3, "south")
            kill(pid_of(deployed, "server", "deployment.server.process"))
            gate.next(*PARTS)  # their replies are lost
            deployed.finish("app", expect=1)
            assert DIED in deployed.output("run-app")
            assert len(deployed.rounds("app")) == 2
            assert not replies(deployed, "app")[0]  # north's request is in the checkpoint

            deployed.submit("app", SETTINGS, "--resume")
            gate.begun(1, "north", times=2)
            gate.next("south")
            gate.begun(4, "south")
            deployed.kill_tree("server")
            gate.next(*PARTS)
            deployed.start_server()
            deployed.finish("app", expect=1)
            assert len(deployed.rounds("app")) == 3

            deployed.submit("app", SETTINGS, "--resume")
            gate.next("north")
            until(lambda: replies(deployed, "app")[0], "north's reply, before the last rounds")
        result = deployed.finish("app")
    watch.check()
    assert [(line["clients"], line["failed"]) for line in deployed.rounds("app")] == [
        (1, [])
    ] * ROUNDS
    assert_rounds_and_bytes(deployed, "app", result)
    assert replies(deployed, "app").keys() == {0, 1}
    assert_ledgers(deployed, "app", spent, Counter())


def test_a_node_killed_during_an_asynchronous_run_trains_again(deployed: Deployment) -> None:
    run, spent = deployed.state / "runs" / "node", charged(deployed)
    nodes = {client: deployed.node(name) for name, client in PARTS.items()}
    with LedgerWatch(run, nodes) as watch:
        with gates(deployed, "node", *PARTS) as gate:
            deployed.submit("node", [*SETTINGS, "federation.staleness=0.4"])
            gate.begun(1, *PARTS)
            gate.next("south", "south")
            gate.begun(3, "south")
            # So that its reply, for which it is charged, never leaves.
            os.kill(pid_of(deployed, "north", "flower-supernode"), signal.SIGSTOP)
            gate.next("north")
            assert steps_held(nodes[0]) == spent[0] + STEPS
            deployed.kill_tree("north")
            # A node that is back too soon leaves its request to the timeout.
            until(lambda: is_offline(deployed, "north"), "the end of north's heartbeats")
            gate.next("south")  # the server learns that north's request is lost
            gone = len(deployed.log("north"))
            start(deployed, "north")
            deployed.wait_for("north", "^SuperNode ID", gone)
            gate.next("south")  # north is asked again in the next round
            deployed.wait_for("north", "^train, round", gone)
            gate.next("north")
            until(lambda: replies(deployed, "node")[0], "north's reply, before the last rounds")
        result = deployed.finish("node")
    watch.check()
    failed = [failure for line in deployed.rounds("node") for failure in line["failed"]]
    assert [failure["client"] for failure in failed] == [0], failed
    assert_rounds_and_bytes(deployed, "node", result)
    assert replies(deployed, "node").keys() == {0, 1}
    assert_ledgers(deployed, "node", spent, Counter({0: 1}))
