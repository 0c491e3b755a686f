"""Sums under masks and private examples at five real nodes; four of them have to stay.

A server that dies before unmasking: test_gate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from disturbed import Seen, gates
from replay import simulated
from rosters import node_up, nodes_with_rosters, roster

from clients.folder import NodeFolder
from deployment.loopback import Deployment, until
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.ledger import read_ledger

pytestmark = pytest.mark.long
NODES = {f"site{k}": k for k in range(5)}
WAIT = 240  # seconds for a node that does not answer a question about keys
SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.train_limit=100",
    "task.eval_limit=20",
    "federation.secure=true",
    "federation.clients=5",
    "federation.min_success=4",
    f"federation.node_wait={WAIT}",
    "wire.up=uniform4",
    "wire.down=eden8",
    "privacy.unit=example",
    "privacy.noise_multiplier=2",
    "local.steps=200",  # hit in the middle
    "engine.cohort=1",  # as at a node, to the bit
    "engine.threads=1",
    "output.eval_every=9",
    "output.plots=false",
]
SAME_NOISE = "privacy.reproducible=true"
EVERYBODY = {(number, client) for number in (1, 2, 3) for client in NODES.values()}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start a server and five nodes, whose rosters have all of their keys."""
    with nodes_with_rosters(tmp_path_factory.mktemp("secure"), [*NODES]) as made:
        yield made


def seen(deployed: Deployment) -> Seen:
    """Return the present lengths of the logs."""
    return {name: len(deployed.log(name)) for name in ("server", *NODES)}


def wait_for_updates(deployed: Deployment, run: str, count: int) -> None:
    """Wait until the server has so many of the masked updates of a round."""
    progress = deployed.state / "runs" / run / "progress.json"
    until(lambda: json.loads(progress.read_text())["done"] == count, f"{count} updates")


def charges(deployed: Deployment) -> list[int]:
    """Return how many rounds are charged to each node's ledger."""
    ledgers = [NodeFolder(deployed.node(name)).ledger for name in NODES]
    return [len(read_ledger(path).charges) if path.exists() else 0 for path in ledgers]


def took_part(deployed: Deployment, run: str) -> list[int]:
    return [line["clients"] for line in deployed.rounds(run)]


def test_a_node_killed_before_unmasking_is_in_the_sum_and_comes_back(
    deployed: Deployment, tmp_path: Path
) -> None:
    settings = [*SETTINGS, SAME_NOISE, "federation.rounds=3"]
    with gates(deployed, "killed", "site0") as gate:
        deployed.submit("killed", settings)
        gate.begun(1, "site0")
        wait_for_updates(deployed, "killed", 4)  # those of the others
        deployed.kill_tree("site4")
        gate.next("site0")
        gate.begun(2, "site0")  # without site4
        gone = seen(deployed)
        deployed.start("site4", *node_up(deployed, "site4", NODES["site4"]))
        deployed.wait_for("server", "Activated node_id", gone["server"])
    result = deployed.finish("killed")
    assert took_part(deployed, "killed") == [5, 4, 5]
    first, second, third = (line["failed"] for line in deployed.rounds("killed"))
    assert not first and not third and {failure["client"] for failure in second} <= {4}
    expected = simulated(settings, tmp_path / "run", EVERYBODY - {(2, 4)})
    assert result["digests"]["vector"] == expected
    assert charges(deployed) == [3, 3, 3, 3, 2]
    nodes = json.loads((deployed.state / "runs" / "killed" / "roster.json").read_text())["nodes"]
    for name, client in NODES.items():
        ledger = read_ledger(NodeFolder(deployed.node(name)).ledger).charges
        epsilon = spent([charge.mechanism for charge in ledger], ledger[-1].delta).epsilon
        assert epsilon and nodes[client]["epsilon"]["example"] == pytest.approx(epsilon)


def test_a_node_whose_roster_differs_refuses_and_spends_nothing(deployed: Deployment) -> None:
    """With noise that nobody can draw again."""
    known, paid, before = roster(deployed, "site1"), charges(deployed), seen(deployed)
    whole = known.read_text()
    known.write_text("".join(line for line in whole.splitlines(True) if "site3" not in line))
    try:
        result = deployed.run("refused", [*SETTINGS, "federation.rounds=1"])
    finally:
        known.write_text(whole)
    assert result["rounds"] == 1 and took_part(deployed, "refused") == [4]
    reason = "1 of 5 clients of the round are not in this node's roster"
    [failure] = deployed.rounds("refused")[0]["failed"]
    assert failure["client"] == 1 and reason in failure["reason"]
    assert deployed.logged("site1", reason, before["site1"])
    spent_now = [now - then for now, then in zip(charges(deployed), paid, strict=True)]
    assert spent_now == [1, 0, 1, 1, 1]


def test_secrets_are_in_private_files_and_in_no_log(deployed: Deployment) -> None:
    logs = [path.read_text(errors="replace") for path in deployed.folder.rglob("*.log")]
    logs += [path.read_text(errors="replace") for path in deployed.folder.glob("*.out")]
    secrets = []
    for name in NODES:
        for path in (deployed.node(name) / "kept" / "secure").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            run = json.loads(path.read_text())
            secrets.append(run["private"])
            if latest := run["latest"]:  # not where a node refused to prepare
                secrets += [latest["key_seed"], latest["mask_seed"], latest["own_share"]]
                secrets += latest["held"].values()
    assert len(secrets) > 5 * 3 * 3 and sum(map(len, logs)) > 1000
    assert not [secret for secret in secrets for log in logs if secret in log]
