"""Kill tunnels and the gateway at random moments of a run: nothing is lost or charged twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import disturbed
import pytest
from disturbed import PARTS, gates, pid_of
from ledgerwatch import steps_held, steps_reported
from replay import simulated, trained

from deployment.loopback import Deployment, until
from deployment.node.status import describe_node
from deployment.processes import kill

pytestmark = pytest.mark.long
ROUNDS = 4
SETTINGS = [*disturbed.SETTINGS, f"federation.rounds={ROUNDS}", "local.steps=20"]
SETTINGS += [*disturbed.PRIVATE, "privacy.reproducible=true"]
EVERYBODY = {(number, client) for number in range(1, ROUNDS + 1) for client in range(len(PARTS))}


def strike(deployed: Deployment, run: str, settings: list[str], seed: int) -> None:
    """Start a run; kill each tunnel and the gateway once, each in another round.

    North's training keeps the round open: the kill comes before its reply, or while it leaves. Once
    each: without heartbeats for a minute Flower gives up a node, as it should.
    """
    draw = random.Random(seed)
    with gates(deployed, run, "north") as gate:
        deployed.submit(run, settings)
        for number, place in enumerate(draw.sample(("server", *PARTS), 1 + len(PARTS)), start=1):
            gate.begun(number, "north")
            leaving = draw.choice((False, True))
            if leaving:
                gate.next("north")
            time.sleep(draw.uniform(0, 2))
            program = "deployment.gateway" if place == "server" else "deployment.tunnel.tunnel"
            kill(pid_of(deployed, place, program))
            if not leaving:
                gate.next("north")


def test_killing_tunnels_and_gateway_loses_nothing_and_charges_each_step_once(
    deployed: Deployment, tmp_path: Path
) -> None:
    paid = [steps_held(deployed.node(name)) for name in PARTS]
    strike(deployed, "tunnels", SETTINGS, seed=1)
    result = deployed.finish("tunnels")
    assert [line["failed"] for line in deployed.rounds("tunnels")] == [[]] * ROUNDS
    run = deployed.state / "runs" / "tunnels"
    assert trained(run) == EVERYBODY
    held = [steps_held(deployed.node(name)) for name in PARTS]
    assert steps_reported(run, len(PARTS)) == held == [before + 20 * ROUNDS for before in paid]
    expected = simulated(SETTINGS, tmp_path / "undisturbed", EVERYBODY)
    assert result["digests"]["vector"] == expected


def test_status_shows_a_connection_again_after_a_kill(deployed: Deployment) -> None:
    state, before = deployed.node("north"), len(deployed.log("north"))
    restarts = describe_node(state)["children"]["tunnel"]["restarts"]
    kill(pid_of(deployed, "north", "deployment.tunnel.tunnel"))
    deployed.wait_for("north", "^connected to the server", before)
    until(lambda: describe_node(state)["up"], "all processes")
    assert describe_node(state)["tunnel"]["connected"]
    assert describe_node(state)["children"]["tunnel"]["restarts"] == restarts + 1
