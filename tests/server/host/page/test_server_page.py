"""A server's page over real HTTPS: its content, and who is refused."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from finished import finished_run
from servers import operations, server_folder
from visitors import Visitor

from fedpeft.cli import main
from fedpeft.hosting.child import Child
from fedpeft.hosting.processes import Supervisor
from server.deployed import starting
from server.host.folder import ServerFolder
from server.remote.page import PATH, act_token, page_address, page_token
from server.runfolder import RunFolder

NODES = {"north": 2**63 + 5, "south": 7}
EVIL = "</script><img src=x onerror=alert(1)>"


def write_nodes(state: ServerFolder) -> None:
    """Register two nodes, of which one has taken part in run "first" and is connected."""
    registry = [
        {"name": name, "node_id": number, "public_key_sha256": "0", "added": "2026-01-01"}
        for name, number in NODES.items()
    ]
    (state.path / "nodes.json").write_text(json.dumps(registry))
    about = {"client": 0, "node_id": NODES["north"], "name": "north", "examples": 24}
    spent = {"rounds": 1, "failed": 0, "epsilon": {"example": 2.5}}
    seen = {"last_seen": "2026-02-01T10:00:00+00:00"}
    (state.path / "runs" / "first" / "roster.json").write_text(
        json.dumps({"nodes": [about | spent | seen]})
    )
    lines = {str(NODES["north"]): [True, "2026-02-01T09:00:00+00:00"]}
    (state.path / "connected.json").write_text(json.dumps(lines))
    (state.path / "wire.json").write_text(json.dumps({str(NODES["north"]): {"up": 12, "down": 34}}))


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """The endpoint of a server with a finished run, two nodes and one process; no SuperLink."""
    state = server_folder(tmp_path_factory.mktemp("page"))
    folder = state.path / "runs" / "first"
    shutil.copytree(finished_run("method.d=16"), folder)
    note = {"round": 1, "message": f"refused south: its labels differ {EVIL}"}
    (folder / "refused.jsonl").write_text(json.dumps(note) + "\n")
    write_nodes(state)
    supervisor = Supervisor([Child("sleeper", ["sleep", "600"])], logging.getLogger("test"))
    started = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(started.set,))
    thread.start()
    assert started.wait(240)
    with operations(state, supervisor):
        yield Visitor(state)
    supervisor.stop()
    thread.join()


def test_the_overview_has_nodes_runs_refusals_and_processes(visitor: Visitor) -> None:
    data = visitor.data()
    north, south = data["nodes"]
    assert (north["state"], north["last_seen"], north["run"]) == ("online", None, "first")
    assert north["node_id"] == str(NODES["north"])
    assert (north["wire"], north["epsilon"]) == ({"up": 12, "down": 34}, {"example": 2.5})
    assert north["version"] == data["server"]["version"]
    assert north["bytes"]["up"] > 0 and north["rounds"] == 1
    assert (south["state"], south["last_seen"], south["version"]) == ("never seen", None, "")
    [run] = data["runs"]
    assert (run["name"], run["state"], run["round"], run["rounds"]) == ("first", "finished", 1, 1)
    assert data["absent"] == [
        {"run": "first", "round": 1, "reason": f"refused south: its labels differ {EVIL}"}
    ]
    assert data["refused"] == []
    [child] = data["children"]
    assert child["name"] == "sleeper" and child["pid"] and child["restarts"] == 0
    assert data["server"]["healthy"] is False  # no SuperLink


def test_a_node_that_leaves_is_away_and_was_seen_then(visitor: Visitor) -> None:
    path = visitor.state.path / "connected.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps({str(NODES["north"]): [False, "2026-03-01T10:00:00+00:00"]}))
        threading.Event().wait(1.1)  # a page serves all readers for a second
        north = visitor.data()["nodes"][0]
        assert (north["state"], north["last_seen"]) == ("away", "2026-03-01T10:00:00+00:00")
    finally:
        path.write_text(before)


def test_a_run_whose_process_loads_is_starting(visitor: Visitor) -> None:
    with starting(visitor.state.path, "second", "77"), starting(visitor.state.path, "first", "78"):
        threading.Event().wait(1.1)
        first, second = visitor.data()["runs"]
        assert (second["name"], second["state"], second["rounds"]) == ("second", "starting", 0)
        assert (first["name"], first["state"], first["rounds"]) == ("first", "starting", 1)
    threading.Event().wait(1.1)
    [run] = visitor.data()["runs"]
    assert (run["name"], run["state"]) == ("first", "finished")


def test_refused_requests_are_apart_from_nodes(visitor: Visitor) -> None:
    line = {"time": "t", "level": "warning", "source": "gateway", "run": ""}
    reason = "refused 10.0.0.7 POST /v1/fleet/x: its signature is too old"
    with visitor.state.log.open("a") as log:
        log.write(json.dumps({**line, "message": reason}) + "\n")
    threading.Event().wait(1.1)
    data = visitor.data()
    [request] = data["refused"]
    assert request == {"reason": "a request of 10.0.0.7: its signature is too old", "times": 1}
    assert all("signature" not in entry["reason"] for entry in data["absent"])


def test_a_damaged_file_is_named(visitor: Visitor) -> None:
    path = visitor.state.path / "nodes.json"
    before = path.read_text()
    try:
        path.write_text("{")
        threading.Event().wait(1.1)
        data = visitor.data()
        assert data["nodes"] == [] and "nodes.json' is damaged" in data["problems"][0]
        assert [run["name"] for run in data["runs"]] == ["first"]
    finally:
        path.write_text(before)
        threading.Event().wait(1.1)


def test_a_run_has_its_page(visitor: Visitor) -> None:
    [run] = visitor.data("runs?name=first")["runs"]
    assert run["name"] == "first" and run["columns"]["round"] == [1]
    for path, status in (("runs?name=none", 404), ("runs?name=..", 404), ("list", 404)):
        assert visitor.get(path).status == status


def test_a_link_is_not_shown_as_a_run(visitor: Visitor, tmp_path: Path) -> None:
    link = visitor.state.path / "runs" / "link"
    link.symlink_to(finished_run("method.d=16"))
    try:
        assert visitor.get("runs?name=link").status == 404
        assert visitor.act("resume?name=link").status == 404
    finally:
        link.unlink()


def test_the_address_opens_the_page_and_leaves_a_cookie(visitor: Visitor) -> None:
    connection = visitor.state.connection()
    address = page_address(connection)
    assert address.startswith(f"{visitor.origin}{PATH}?token=")
    answer = visitor.request("GET", address.removeprefix(visitor.origin))
    assert (answer.status, answer.headers["Location"]) == (303, PATH)
    cookie = answer.headers["Set-Cookie"]
    assert page_token(connection) in cookie and connection.token not in cookie
    for attribute in ("HttpOnly", "Secure", "SameSite=lax", "Path=/watch"):
        assert attribute in cookie


@pytest.mark.parametrize("path", ["", "runs?name=first", "events?view=server", "act/stop?name=x"])
def test_nothing_is_shown_without_the_token(visitor: Visitor, path: str) -> None:
    operator = visitor.state.connection().token
    for headers in ({}, {"Cookie": visitor.cookie[:-1]}, {"Authorization": f"Bearer {operator}"}):
        answer = visitor.request("GET", f"{PATH}{path}", **headers)
        assert answer.status == 401 and "`fedpeft server watch`" in answer.text
    assert visitor.request("GET", f"{PATH}?token=wrong").status == 401
    assert visitor.act("stop?name=first", Cookie="").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "10.0.0.1:9092"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(visitor: Visitor, headers: dict[str, str]) -> None:
    assert visitor.get(**headers).status == 403
    assert visitor.act("resume?name=first", **headers).status == 403


@pytest.mark.parametrize(
    "headers", [{"X-Fedpeft-Act": ""}, {"X-Fedpeft-Act": "wrong"}, {"Origin": ""}]
)
def test_only_the_page_itself_may_act(visitor: Visitor, headers: dict[str, str]) -> None:
    """The cookie alone permits nothing: a form of a foreign page sends it in some browsers."""
    assert visitor.act("resume?name=first", **headers).status == 403
    answer = visitor.act("resume?name=first", **{"X-Fedpeft-Act": page_token_of(visitor)})
    assert answer.status == 403


def page_token_of(visitor: Visitor) -> str:
    return page_token(visitor.state.connection())


def test_a_preflight_of_a_foreign_page_is_refused(visitor: Visitor) -> None:
    answer = visitor.request("OPTIONS", f"{PATH}act/stop", Cookie=visitor.cookie)
    assert answer.status == 405
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_actions_that_cannot_be_done_say_why(visitor: Visitor) -> None:
    for path in ("pause?name=first", "stop?name=none", "stop?name=../token", "stop"):
        assert visitor.act(path).status == 404
    answer = visitor.act("resume?name=first")
    assert (answer.status, answer.text) == (
        409,
        "run 'first' has finished; there is nothing to resume\n",
    )
    answer = visitor.act("stop?name=first")
    assert answer.status == 409 and "nothing to stop" in answer.text
    with RunFolder(visitor.state.path / "runs" / "first").locked():
        answer = visitor.act("resume?name=first")
    assert (answer.status, answer.text) == (409, "run 'first' is running already\n")


def test_the_tokens_differ_and_reveal_no_other(visitor: Visitor) -> None:
    connection = visitor.state.connection()
    tokens = {connection.token, page_token(connection), act_token(connection)}
    assert len(tokens) == 3 and all(len(token) == 64 for token in tokens)
    assert connection.token not in visitor.get().text


def test_health_metrics_and_runs_are_as_before(visitor: Visitor) -> None:
    assert visitor.request("GET", "/health").status == 503
    assert visitor.request("GET", "/metrics").status == 200
    assert visitor.request("GET", "/runs", Cookie=visitor.cookie).status == 401
    assert visitor.request("GET", "/watch").status == 404


def test_the_command_prints_the_address(
    visitor: Visitor, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["server", "watch", "--on", str(visitor.state.path)])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == page_address(visitor.state.connection())
    assert "import" in rest[0] and rest[1].count(":") == 31
