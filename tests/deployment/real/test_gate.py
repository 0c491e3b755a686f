"""One deployment in every `.ci/run`: kills, resume, private sums under masks, the server's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import disturbed
import pytest
from browsing import chromium, serious_violations, set_screen
from disturbed import gates, pid_of
from replay import simulated, trained
from rosters import nodes_with_rosters
from selenium.webdriver.support.ui import WebDriverWait

from clients.folder import NodeFolder
from deployment.loopback import PATIENCE, Deployment
from deployment.operator.connection import find_connection
from deployment.operator.page import page_address
from deployment.processes import kill
from fedpeft.privacy.ledger import read_ledger

pytestmark = [pytest.mark.long, pytest.mark.gate]
NODES = ["site0", "site1", "site2"]
SETTINGS = [
    *disturbed.SETTINGS,
    "federation.clients=3",
    "federation.min_success=3",
    "federation.rounds=2",
    "federation.secure=true",
    "wire.up=uniform8",
    *disturbed.PRIVATE,
    "privacy.reproducible=true",
]
EVERYBODY = {(number, client) for number in (1, 2) for client in range(len(NODES))}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with nodes_with_rosters(tmp_path_factory.mktemp("gate"), NODES) as made:
        yield made


def test_kills_of_worker_superlink_and_server_app_do_not_change_the_bits(
    deployed: Deployment, tmp_path: Path
) -> None:
    logged = {name: len(deployed.log(name)) for name in ("server", *NODES)}
    with gates(deployed, "run", *NODES) as gate:
        deployed.submit("run", SETTINGS)
        gate.begun(1, *NODES)
        kill(pid_of(deployed, "site0", "deployment.node.worker"))
        deployed.wait_for("site0", "^waiting for messages", logged["site0"])
        kill(pid_of(deployed, "server", "flower-superlink"))
        deployed.wait_for("server", "^ended by signal 9", logged["server"])
        gate.next(*NODES)
        gate.begun(2, *NODES)
        gate.next("site0")  # which has stored its reply, and charged it
        kill(pid_of(deployed, "server", "deployment.server.process"))
    deployed.finish("run", expect=1)
    assert disturbed.DIED in deployed.output("run-run")
    assert len(deployed.rounds("run")) == 1
    deployed.submit("run", SETTINGS, "--resume")
    result = deployed.finish("run")
    assert deployed.logged("site0", "this process answers instead")
    assert [line["failed"] for line in deployed.rounds("run")] == [[], []]
    assert trained(deployed.folder / "run") == EVERYBODY
    ledgers = [read_ledger(NodeFolder(deployed.node(name)).ledger) for name in NODES]
    assert [len(ledger.charges) for ledger in ledgers] == [2, 2, 2]
    expected = simulated(SETTINGS, tmp_path / "expected", EVERYBODY)
    assert result["digests"]["vector"] == expected


def test_pages_of_the_server_open_without_errors(deployed: Deployment) -> None:
    address = page_address(find_connection(str(deployed.state)))
    with chromium() as browser:
        for page, ready in (
            (address, "#nodes ~ div tbody tr"),
            (f"{address.partition('?')[0]}runs?name=run", ".facts div"),
        ):
            set_screen(browser, 1280, "light")
            browser.get(page)
            WebDriverWait(browser, PATIENCE).until(
                lambda opened, ready=ready: opened.find_elements("css selector", ready)
            )
            assert serious_violations(browser) == []
            set_screen(browser, 400, "light")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
