"""Kill tunnels and the gateway at random moments of a run: nothing is lost or charged twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import disturbed
import pytest
from disturbed import PARTS, two_nodes
from ledgerwatch import steps_held, steps_reported
from replay import simulated, trained

from simulations.loopback import Deployment, until
from simulations.processes import kill

pytestmark = pytest.mark.long
ROUNDS = 4
SETTINGS = [*disturbed.SETTINGS, f"federation.rounds={ROUNDS}", "local.steps=20"]
EVERYBODY = {(number, client) for number in range(1, ROUNDS + 1) for client in range(len(PARTS))}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with two_nodes(tmp_path_factory.mktemp("tunnels")) as made:
        yield made


@contextmanager
def killing(deployed: Deployment, seed: int) -> Iterator[list[str]]:
    """Kill each tunnel and the gateway once, seconds apart; yield the list of those killed.

    Only once: the pauses before restarts grow, and without heartbeats for a minute Flower gives up
    a node, as it should.
    """
    draw, over, killed = random.Random(seed), threading.Event(), []

    def strike() -> None:
        for place in draw.sample(("server", *PARTS), 1 + len(PARTS)):
            if over.wait(draw.uniform(0.5, 6)):
                return
            program = "server.host.gateway" if place == "server" else "clients.tunnel"
            for pid in deployed.pids(place, program):
                kill(pid)
                killed.append(place)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_killing_tunnels_and_gateway_does_not_change_the_bits(
    deployed: Deployment, tmp_path: Path
) -> None:
    expected = simulated(SETTINGS, tmp_path / "undisturbed", EVERYBODY)
    deployed.submit("bits", SETTINGS)
    until(lambda: deployed.rounds("bits"), "the first round")
    with killing(deployed, seed=1) as killed:
        until(lambda: len(deployed.rounds("bits")) >= ROUNDS - 1, "the round before the last")
    result = deployed.finish("bits")
    assert set(killed), "nothing was killed"
    print("killed:", killed, "seconds:", [line["seconds"] for line in deployed.rounds("bits")])
    assert [line["failed"] for line in deployed.rounds("bits")] == [[]] * ROUNDS
    assert result["digests"]["vector"] == expected


def test_killing_tunnels_and_gateway_charges_each_step_once(deployed: Deployment) -> None:
    deployed.submit("private", [*SETTINGS, *disturbed.PRIVATE])
    with killing(deployed, seed=2) as killed:
        until(lambda: len(deployed.rounds("private")) >= ROUNDS - 1, "the round before the last")
    deployed.finish("private")
    run = deployed.state / "runs" / "private"
    assert set(killed) and trained(run) == EVERYBODY
    held = [steps_held(deployed.node(name)) for name in PARTS]
    assert steps_reported(run, len(PARTS)) == held == [20 * ROUNDS] * len(PARTS)


def test_status_shows_a_connection_again_after_a_kill(deployed: Deployment) -> None:
    from clients.status import describe_node

    state = deployed.node("north")
    (tunnel,) = deployed.pids("north", "clients.tunnel")
    kill(tunnel)
    until(lambda: not describe_node(state)["up"], "the end of the tunnel")
    until(lambda: (describe_node(state)["tunnel"] or {}).get("connected"), "another connection")
    assert describe_node(state)["children"]["tunnel"]["restarts"] >= 1
