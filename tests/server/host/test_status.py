"""The status reports the content of the folders and the answers of the SuperLink."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from finished import finished_run
from servers import server_folder, superlink

from fedpeft.errors import UserError
from fedpeft.hosting.keys import make_node
from fedpeft.hosting.record import write_record
from server.deployed import starting
from server.host.folder import ServerFolder
from server.host.registration import add_node, remove_node
from server.host.status import describe_server
from server.remote.flwr_cli import run_flwr
from server.runfolder import RunFolder

NODES = {"a": 2**63 + 5, "b": 7, "c": 8}  # a node id has 64 bits


@pytest.fixture
def state(tmp_path: Path) -> ServerFolder:
    """The folder of a server that is down, with three registered nodes."""
    state = server_folder(tmp_path)
    registry = [
        {"name": name, "node_id": number, "public_key_sha256": "0", "added": "2026-01-01"}
        for name, number in NODES.items()
    ]
    (state.path / "nodes.json").write_text(json.dumps(registry))
    return state


def add_run(state: ServerFolder, name: str, age: float, **nodes: dict[str, Any]) -> Path:
    """Copy a finished run with two clients into the state folder; ``nodes`` by their names."""
    folder = state.path / "runs" / name
    shutil.copytree(finished_run("method.d=16"), folder)
    entries = [
        {
            "node_id": NODES[node],
            "name": node,
            "examples": 24,
            "last_seen": "2026-02-01T10:00:00+00:00",
            "rounds": 1,
            "failed": 0,
            "epsilon": {},
        }
        | entry
        for node, entry in nodes.items()
    ]
    (folder / "roster.json").write_text(json.dumps({"nodes": entries}))
    then = datetime.now().timestamp() - age
    os.utime(folder, (then, then))
    return folder


def by_name(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in described["nodes"]}


def test_folder_without_a_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"server\.json'; 'fedpeft server up --state .* makes it"):
        describe_server(tmp_path)


def test_status_of_a_server_that_is_down(state: ServerFolder) -> None:
    add_run(state, "first", 10, a={"client": 0}, b={"client": 1})
    status = json.loads(json.dumps(describe_server(state.path), allow_nan=False))
    assert (status["up"], status["pid"], status["since"]) == (False, None, None)
    assert status["ports"] == dict(state.ports)
    assert [(run["name"], run["state"], run["round"], run["rounds"]) for run in status["runs"]] == [
        ("first", "finished", 1, 1)
    ]
    assert [node["name"] for node in status["nodes"]] == ["a", "b", "c"]
    assert by_name(status)["a"]["last_seen"] == "2026-02-01T10:00:00+00:00"
    assert by_name(status)["c"]["last_seen"] is None
    assert {node["state"] for node in status["nodes"]} == {"unknown"}


def test_bytes_of_the_nodes_add_up_to_those_of_the_run(state: ServerFolder) -> None:
    folder = add_run(state, "first", 10, a={"client": 1}, b={"client": 0})
    status = describe_server(state.path)
    result = json.loads((folder / "result.json").read_text())
    kinds = [result["bytes"], result["bytes"]["evaluate"], result["bytes"]["handshake"]]
    for way in ("up", "down"):
        total = sum(kind[way]["message"] for kind in kinds)
        assert status["runs"][0]["bytes"][way] == total
        assert sum(by_name(status)[node]["bytes"][way] for node in "ab") == total
    lines = [line for line in RunFolder(folder).sent() if line["client"] == 1]
    assert by_name(status)["a"]["bytes"]["up"] == sum(line["up"]["message"] for line in lines)
    assert by_name(status)["c"]["bytes"] is None


def test_a_node_shows_the_latest_run_that_it_was_in(state: ServerFolder) -> None:
    add_run(state, "z-old", 100, a={"client": 0, "rounds": 7}, b={"client": 1})
    epsilon = {"example": 2.5, "client": None}
    add_run(state, "a-new", 10, b={"client": 0, "failed": 2, "away": 3, "epsilon": epsilon})
    status = describe_server(state.path)
    assert [run["name"] for run in status["runs"]] == ["z-old", "a-new"]
    a, b, c = (by_name(status)[name] for name in "abc")
    assert (a["run"], a["client"], a["rounds"], a["away"]) == ("z-old", 0, 7, 0)
    assert (b["run"], b["client"], b["epsilon"]) == ("a-new", 0, epsilon)
    assert (b["failed"], b["away"]) == (2, 3)
    assert (c["run"], c["client"], c["epsilon"]) == (None, None, {})


def test_a_run_that_a_process_works_on_is_running(state: ServerFolder) -> None:
    folder = add_run(state, "run", 10, a={"client": 0})
    (folder / "result.json").unlink()
    with RunFolder(folder).locked():
        (run,) = describe_server(state.path)["runs"]
    assert run["state"] == "running"


def test_a_run_is_starting_until_its_process_opens_the_folder(state: ServerFolder) -> None:
    def states() -> list[tuple[str, str, int]]:
        runs = describe_server(state.path)["runs"]
        return [(run["name"], run["state"], run["rounds"]) for run in runs]

    with starting(state.path, "run", "77"):
        assert states() == [("run", "starting", 0)]
        folder = add_run(state, "run", 10)
        (folder / "result.json").unlink()
        assert states() == [("run", "starting", 1)]  # resumed: an earlier process made the folder
        (folder / "run.json").write_text('{"run": "77"}')
        assert states() == [("run", "unfinished", 1)]
    (state.path / "starting" / "78").write_text("killed")
    with starting(state.path, "", "79"):
        assert states() == [("run", "unfinished", 1)]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({"ended.json": '{"ok": false, "reason": "too few"}'}, ("failed", "too few", 1)),
        (
            {"ended.json": '{"ok": false, "stopped": true, "reason": "stopped"}'},
            ("stopped", "stopped", 1),
        ),
        ({"result.json": None}, ("unfinished", "", 1)),
        ({"result.json": None, "rounds.jsonl": None}, ("unfinished", "", 0)),
        ({"ended.json": '{"ok": true, "reason": ""}'}, ("finished", "", 1)),
        ({"ended.json": "{"}, ("damaged", "", 0)),
        ({"rounds.jsonl": "x\n"}, ("damaged", "", 0)),
        ({"experiment.toml": "x"}, ("damaged", "", 0)),
    ],
)
def test_the_state_of_a_run(
    state: ServerFolder, spoil: dict[str, str | None], expected: tuple[str, str, int]
) -> None:
    folder = add_run(state, "run", 10, a={"client": 0})
    for name, content in spoil.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(content)
    (run,) = describe_server(state.path)["runs"]
    assert (run["state"], run["reason"], run["round"]) == expected


def test_process_of_the_server_comes_from_its_record(state: ServerFolder) -> None:
    since = datetime(2026, 1, 31, 12, tzinfo=UTC)
    write_record(state.processes, since, {}, {"superlink": 0})
    status = describe_server(state.path)
    assert (status["up"], status["pid"]) == (False, os.getpid())
    assert status["since"] == "2026-01-31T12:00:00+00:00"
    record = json.loads(state.processes.read_text())
    state.processes.write_text(json.dumps({**record, "started": 1}))  # an earlier process
    assert describe_server(state.path)["pid"] is None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFolder]:
    """A running SuperLink."""
    state = server_folder(tmp_path_factory.mktemp("server"))
    with superlink(state):
        yield state


@pytest.mark.long
def test_states_of_nodes_come_from_the_superlink(server: ServerFolder, tmp_path: Path) -> None:
    kept, gone, half = (make_node(tmp_path, name)[1] for name in ("kept", "gone", "half"))
    node = add_node(server.path, kept)
    add_node(server.path, gone)
    remove_node(server.path, "gone")
    # Registered with Flower only: it could connect, so the status must show it.
    run_flwr(["supernode", "register", str(half)], server.connection())
    status = describe_server(server.path)
    assert status["up"] is True
    assert status["runs"] == []
    known, unnamed = status["nodes"]
    assert (known["name"], known["node_id"], known["state"]) == ("kept", node.node_id, "registered")
    assert (unnamed["name"], unnamed["state"]) == ("", "registered")
