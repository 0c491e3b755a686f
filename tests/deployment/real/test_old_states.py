"""State folders of commit 35e054f open and continue: of a server, of its nodes, and their ledgers.

The archive was made by the commands of that commit with Flower 1.41, keys included: a server, two
nodes with --max-epsilon 30, a finished run ("first", two rounds), and one that was stopped after
four of six rounds ("half"), when its nodes had trained for the fifth.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.folder import NodeFolder, NodeSettings
from clients.privacy.budget import describe_units
from deployment.hosting.keys import make_authority, make_server
from deployment.loopback import Deployment, deployment, run
from deployment.node.checks import check_key
from deployment.node.status import describe_node
from deployment.server.folder import PORTS, ServerFolder
from deployment.server.registration import add_node
from deployment.server.status import describe_server
from fedpeft.errors import UserError
from fedpeft.page.ports import free_port
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import BudgetSpent, OtherLedger, PrivacyLedger, read_ledger
from server.members.registry import registered_nodes

ARCHIVE = Path(__file__).with_name("states-35e054f.tar.xz")
NODES = {"north": 9709455633490977341, "south": 15726386606592857562}
ROUND = Mechanism(2.0, 0.2, 5)  # 1,000 examples, batches of 200


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the folder of that deployment, moved to free ports."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    file = tmp_path / "server" / "server.json"
    ports: list[int] = []
    for _ in PORTS:
        ports.append(free_port(ports))
    settings = json.loads(file.read_text()) | {"ports": dict(zip(PORTS, ports, strict=True))}
    file.write_text(json.dumps(settings | {"keys": str(tmp_path / "keys")}))
    return tmp_path


def test_the_server_has_its_nodes_and_runs(old: Path) -> None:
    status = describe_server(old / "server")
    assert not status["up"] and status["pid"] is None
    runs = {each["name"]: each for each in status["runs"]}
    assert {name: each["state"] for name, each in runs.items()} == {
        "first": "finished",
        "half": "stopped",
    }
    assert (runs["first"]["round"], runs["half"]["round"], runs["half"]["rounds"]) == (2, 4, 6)
    assert runs["half"]["epsilon"] == pytest.approx(1.934, abs=1e-3)
    nodes = {node["name"]: node for node in status["nodes"]}
    assert {name: node["node_id"] for name, node in nodes.items()} == NODES
    assert [(node["client"], node["rounds"], node["run"]) for node in nodes.values()] == [
        (0, 4, "half"),
        (1, 4, "half"),
    ]


def test_the_servers_folder_settles_and_registers_nobody_twice(old: Path) -> None:
    make_authority(old / "ca")
    make_server(old / "keys", ["localhost"], old / "ca")
    state, any_port = old / "server", dict.fromkeys(PORTS)
    token = (state / "token").read_text()
    before = ServerFolder.read(state)
    after = ServerFolder.settle(state, old / "keys", ["localhost"], "127.0.0.1", any_port)
    assert after.ports == before.ports and after.connection().token == token
    assert {node.name: node.node_id for node in registered_nodes(state)} == NODES
    with pytest.raises(UserError, match="north"):
        add_node(state, old / "keys" / "north.pub")


@pytest.mark.parametrize("name", NODES)
def test_a_node_has_its_status_settings_and_key(old: Path, name: str) -> None:
    status = describe_node(old / name)
    assert not status["up"] and status["pid"] is None
    assert status["last_message"]["message"].startswith("train, round 5: done in ")
    settings = NodeSettings.read(old / name)
    assert (settings.max_epsilon, settings.delta, settings.examples) == (30, 0.0001, 1000)
    assert settings.allow == ("tiny",) and settings.partition == [*NODES].index(name)
    check_key(old / "keys" / name)
    [unit] = describe_units(read_ledger(NodeFolder(old / name).ledger), settings)
    assert unit["limit"] == 30 and unit["spent"] == spent([ROUND] * 7, 0.0001).epsilon
    assert unit["fits"] > 0


def test_the_ledger_is_charged_further(old: Path) -> None:
    path = NodeFolder(old / "north").ledger
    contents = read_ledger(path)
    assert contents.mechanisms("example") == [ROUND] * 7
    assert [charge.round for charge in contents.charges] == [1, 2, 1, 2, 3, 4, 5]
    with pytest.raises(OtherLedger):
        PrivacyLedger(path, contents.owner, "ab" * 32)
    ledger = PrivacyLedger(path, contents.owner, contents.data)
    delta, before = contents.charges[0].delta, spent([ROUND] * 7, contents.charges[0].delta)
    with pytest.raises(BudgetSpent):
        ledger.charge("example", ROUND, delta, before.epsilon, run="new", round_number=1, note={})
    assert read_ledger(path) == contents
    ledger.charge("example", ROUND, delta, 30, run="new", round_number=1, note={})
    assert read_ledger(path).charges[:7] == contents.charges
    assert spent(read_ledger(path).mechanisms("example"), delta).epsilon > before.epsilon


@pytest.fixture
def deployed(old: Path) -> Iterator[Deployment]:
    """Start the server and the nodes in their old folders, with a new authority."""
    with deployment(old) as made:
        for part, name in enumerate(NODES):
            limits = ("--max-epsilon", "30", "--examples", "1000", "--delta", "0.0001")
            made.start_node(name, "--partition", str(part), *limits, "--backbone", "tiny")
        yield made


@pytest.mark.long
def test_the_stopped_run_continues_to_its_end(deployed: Deployment) -> None:
    before = deployed.rounds("half")
    deployed.submit("half", [], "--resume")
    result = deployed.finish("half")
    lines = deployed.rounds("half")
    assert lines[:4] == before and [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["clients"] == 2 for line in lines)
    assert before[-1]["epsilon"] < lines[-1]["epsilon"] <= result["epsilon"] < 30
    for name in NODES:
        charges = read_ledger(NodeFolder(deployed.node(name)).ledger).charges
        assert charges[-1].round == 6 and len(charges) in (8, 9)
    status = json.loads(run("server", "status", "--state", str(deployed.state), "--json"))
    assert status["up"] and [each["state"] for each in status["runs"]] == ["finished"] * 2
