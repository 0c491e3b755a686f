"""Nodes that are online or were last seen: the status and the metrics agree."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from servers import server_folder, superlink

from deployment.hosting.keys import make_node
from deployment.hosting.processes import Supervisor
from deployment.server.folder import ServerFolder
from deployment.server.metrics import Metrics
from deployment.server.presence import Presence, last_seen
from deployment.server.registration import add_node
from deployment.server.status import describe_server
from fedpeft.page.ports import free_port

PATIENCE = 240.0  # seconds to wait for anything, as machines are busy
TRAINED = "2026-02-01T10:00:00+00:00"


@pytest.mark.parametrize(
    ("entry", "trained", "expected"),
    [
        ({}, "", ""),
        ({}, TRAINED, TRAINED),
        ({"status": "registered", "offline-at": "N/A"}, "", ""),
        (
            {"status": "offline", "offline-at": "2026-02-01 10:00:05Z"},
            "",
            TRAINED[:17] + "05+00:00",
        ),
        ({"status": "offline", "offline-at": "2026-02-01 09:00:00Z"}, TRAINED, TRAINED),
    ],
)
def test_last_seen_of_a_node_that_is_not_online(
    entry: dict[str, str], trained: str, expected: str
) -> None:
    assert last_seen(entry, trained) == expected


def test_last_seen_of_a_node_that_is_online_is_now() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # its precision
    seen = datetime.fromisoformat(last_seen({"status": "online"}, TRAINED))
    assert before <= seen <= datetime.now(UTC)


def eventually(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (result := what()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return result


def gauges(metrics: Metrics, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels["node"]: sample.value for sample in samples}


@pytest.mark.long
def test_the_status_and_the_metrics_agree(tmp_path: Path) -> None:
    state = server_folder(tmp_path)
    private, public = make_node(tmp_path, "here")
    with superlink(state):
        here, away = (
            add_node(state.path, public),
            add_node(state.path, make_node(tmp_path, "no")[1]),
        )
        node = start_supernode(state, private, tmp_path)
        try:
            presence = Presence(state.connection())
            eventually(lambda: states(state)["here"] == "online")
            assert presence.known() == {}  # asked for in the background
            known = eventually(presence.known)
            assert known[here.node_id]["status"] == "online"
            assert known[away.node_id]["status"] == "registered"

            metrics = Metrics(state.path, state.connection(), Supervisor([], logging.getLogger()))
            online = eventually(lambda: gauges(metrics, "fedpeft_node_online"))
            assert online == {"here": 1, "no": 0}
            seen = gauges(metrics, "fedpeft_node_last_seen_seconds")
            assert list(seen) == ["here"] and 0 <= seen["here"] < PATIENCE
            before = datetime.now(UTC) - timedelta(seconds=1)  # its precision
            status = {node["name"]: node for node in describe_server(state.path)["nodes"]}
            assert status["no"]["last_seen"] is None
            assert datetime.fromisoformat(status["here"]["last_seen"]) >= before
        finally:
            node.terminate()
            node.wait(PATIENCE)
        eventually(lambda: states(state)["here"] == "offline")
    # Flower's last answer does not count once Flower cannot be asked.
    assert gauges(metrics, "fedpeft_node_online") == {}
    assert set(states(state).values()) == {"unknown"}


def states(state: ServerFolder) -> dict[str, str]:
    return {node["name"]: node["state"] for node in describe_server(state.path)["nodes"]}


def start_supernode(state: ServerFolder, private: Path, folder: Path) -> subprocess.Popen[bytes]:
    home = folder / "flwr"
    home.mkdir()
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return subprocess.Popen(
        [
            *(str(Path(sys.executable).parent / "flower-supernode"), "--superlink"),
            *(f"127.0.0.1:{state.ports['control']}", "--root-certificates", str(state.ca)),
            *("--auth-supernode-private-key", str(private), "--max-retries", "1"),
            *("--port", str(free_port()), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(state.secret)),
        ],
        env={**os.environ, "FLWR_HOME": str(home), **quiet},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
