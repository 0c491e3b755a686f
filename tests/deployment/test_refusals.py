"""Refusals of nodes, requests and bundles, with the cause in the server's log."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flowering import foreign_project

import fedpeft
from clients.folder import NodeFolder
from fedpeft.hosting.keys import make_node
from fedpeft.hosting.ports import PORTS
from server.host.registration import add_node
from server.remote.connection import Connection, find_connection, secure_line
from server.remote.flwr_cli import run_flwr
from server.remote.submit import status
from simulations.loopback import Deployment, command, deployment, run, until

pytestmark = pytest.mark.long
REFUSED = "refused 127.0.0.1"
#: Nodes with a copy of fedpeft that differs: of each place the file, what stands there, instead.
OTHERS = {
    "older": [
        ("version.py", '= version("fedpeft")', '= "0.0.9"'),
        (
            "experiment/settings.py",
            "    plots: bool",
            "    pictures: bool",
        ),  # it does not know all settings
    ],
    "retrained": [
        ("backbones/tiny.py", 'generator(0, "tiny-backbone")', 'generator(1, "tiny-backbone")')
    ],
    "elsewhere": [("projection/__init__.py", 'f"fedpeft-projection-v1', 'f"another-v1')],
}
SETTINGS = ["backbone=tiny", "method.d=16", "engine.threads=1"]
SETTINGS += ["task.train_limit=80", "task.eval_limit=20"]
SETTINGS += ["federation.clients=4", "federation.rounds=2"]


def differing_copy(folder: Path, changes: list[tuple[str, str, str]]) -> Path:
    """Copy the package with some changes into a folder from which it can be imported."""
    source = Path(fedpeft.__file__).parent
    shutil.copytree(source, folder / "fedpeft", ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        path = folder / "fedpeft" / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
    return folder


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start a server with one equal node, and three that differ."""
    with deployment(tmp_path_factory.mktemp("refusals")) as made:
        for client, name in enumerate(["good", *OTHERS]):
            make_node(made.keys, name)
            add_node(made.state, made.keys / f"{name}.pub")
            with pytest.MonkeyPatch.context() as patch:
                if name in OTHERS:
                    code = differing_copy(made.folder / f"{name}-code", OTHERS[name])
                    patch.setenv("PYTHONPATH", str(code), prepend=os.pathsep)
                worker = ["--no-worker"] if name in OTHERS else []
                made.start(name, *node_up(made, name, client), *worker)
        for name in ["good", *OTHERS]:
            made.wait_for(name, "the node is up")
        yield made


def node_up(deployed: Deployment, name: str, client: int = 0, ca: str = "ca.crt") -> list[str]:
    """Return the command line of a node that trains on a part of a public task."""
    return command(
        *("node", "up", "--superlink", f"localhost:{port(deployed, 'public')}"),
        *("--key", str(deployed.keys / name), "--ca", str(deployed.keys / ca)),
        *("--state", str(deployed.node(name)), "--partition", str(client)),
    )


def port(deployed: Deployment, name: str) -> int:
    return int(json.loads((deployed.state / "server.json").read_text())["ports"][name])


def connection(deployed: Deployment) -> Connection:
    return find_connection(str(deployed.state))


def ask(deployed: Deployment, name: str, path: str, method: str = "POST") -> int:
    """Return the status of a request over TLS to one of the server's ports."""
    context = ssl.create_default_context(cafile=deployed.keys / "ca.crt")
    url = f"https://localhost:{port(deployed, name)}{path}"
    headers = {"Content-Type": "application/protobuf"}
    with httpx.Client(verify=context, http2=True, trust_env=False, timeout=60) as client:
        return client.request(method, url, content=b"", headers=headers).status_code


def test_nodes_with_another_version_or_result_are_refused_and_the_others_train(
    deployed: Deployment,
) -> None:
    result = deployed.run("mixed", SETTINGS)
    assert [line["clients"] for line in deployed.rounds("mixed")] == [1, 1]
    took_part = json.loads((deployed.state / "runs" / "mixed" / "roster.json").read_text())
    assert [node["name"] for node in took_part["nodes"]] == ["good"]
    original = result["digests"]
    expected = {
        "older": rf"version is 0\.0\.9, expected {fedpeft.__version__}",
        "retrained": rf"backbone is [0-9a-f]{{12}}, expected {original['backbone'][:12]}",
        "elsewhere": rf"projection is [0-9a-f]{{12}}, expected {original['projection'][:12]}",
    }
    for client, (name, difference) in enumerate(expected.items(), start=1):
        lines = deployed.logged("server", rf"^refused client {client}, {name}: {difference}$")
        assert len(lines) == 1, deployed.logged("server", "refused")  # no more differs
    assert not deployed.logged("server", "refused client 0|no handshake")


def test_a_node_without_a_registered_key_is_refused(deployed: Deployment) -> None:
    make_node(deployed.keys, "stranger")
    begin = len(deployed.log("server"))
    deployed.start("stranger", *node_up(deployed, "stranger"), "--no-worker")
    line = f"^{REFUSED} POST /v1/fleet/activate-node: its key is not registered"
    deployed.wait_for("server", line, begin)
    deployed.wait_for("stranger", r"\[code: 2004\] The key of this node is not registered")
    assert deployed.stop("stranger") == 0


def test_a_node_with_another_authority_is_refused(deployed: Deployment) -> None:
    run("keys", "init", "--out", str(deployed.folder / "other"))
    make_node(deployed.keys, "lost")
    begin, wrong = len(deployed.log("server")), str(deployed.folder / "other" / "ca.crt")
    done = subprocess.run(node_up(deployed, "lost", ca=wrong), capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = [entry for entry in done.stderr.splitlines() if "its certificate is refused" in entry]
    assert line.startswith("error: ") and line.endswith(f"is {wrong} the right CA?")
    deployed.wait_for("server", "TLS handshake with 127.0.0.1 failed: .* unknown ca$", begin)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/list-nodes"),
        ("POST", "/v1/runtime/acquire-task"),
        ("GET", "/docs"),
        ("GET", "/health"),
    ],
)
def test_a_request_from_outside_reaches_the_nodes_calls_only(
    deployed: Deployment, method: str, path: str
) -> None:
    assert ask(deployed, "control", path, method) != 404  # behind the gateway there is such a thing
    begin = len(deployed.log("server"))
    assert ask(deployed, "public", path, method) == 403
    line = deployed.wait_for("server", f"^{REFUSED} {method} {path}: ", begin)
    assert line.endswith("only POST /v1/fleet/NAME is open to the outside")


def test_plain_http_is_refused(deployed: Deployment) -> None:
    begin = len(deployed.log("server"))
    line = http.client.HTTPConnection("localhost", port(deployed, "public"))
    with pytest.raises(http.client.HTTPException):
        line.request("POST", "/v1/fleet/pull-messages", b"")
        line.getresponse()
    line.close()
    deployed.wait_for("server", "failed: plain HTTP .* this port speaks TLS only$", begin)


def test_tasks_are_given_only_to_processes_with_the_secret(deployed: Deployment) -> None:
    """On loopback, where requests do not pass the gateway: at the server, and at a node."""
    begin = len(deployed.log("server"))
    assert ask(deployed, "control", "/v1/runtime/acquire-task") == 401
    assert ask(deployed, "control", "/v1/runtime/pull-task-input") == 401
    deployed.wait_for("server", r"POST /v1/runtime/acquire-task HTTP/1\.1. 401", begin)
    (listening,) = deployed.logged("good", r"running on https://127\.0\.0\.1:\d+")
    node = int(listening.rpartition(":")[2].split()[0])
    assert node in PORTS
    line = secure_line(
        f"127.0.0.1:{node}", NodeFolder(deployed.node("good")).runtime / "ca.crt", 20
    )
    headers = {"Content-Type": "application/protobuf"}
    line.request("POST", "/v1/runtime/acquire-task", b"", headers)
    assert line.getresponse().status == 401
    line.close()


def test_the_operations_endpoint_requires_the_token(deployed: Deployment) -> None:
    begin = len(deployed.log("server"))
    there, token = connection(deployed).operations, connection(deployed).token
    for given, expected in (("", 401), ("Bearer wrong", 401), (f"Bearer {token}", 200)):
        line = secure_line(there, connection(deployed).ca, 20)
        line.request("GET", "/runs", headers={"Authorization": given})
        assert line.getresponse().status == expected
        line.close()
    expected = "^operations: refused a request for runs without the right token$"
    deployed.wait_for("server", expected, begin)
    assert len(deployed.logged("server", expected, begin)) == 2


def submit_code(deployed: Deployment, name: str) -> tuple[str, Path]:
    """Submit a bundle with code, as any program that reaches the control port can."""
    marks = deployed.folder / name
    marks.mkdir()
    project = foreign_project(marks / "foreign", marks)
    return str(run_flwr(["run", str(project)], connection(deployed))["run-id"]), marks


def test_a_bundle_that_brings_its_own_code_is_refused(deployed: Deployment) -> None:
    number, marks = submit_code(deployed, "insider")
    until(lambda: status(connection(deployed), number).end == "failed", "the end of the run")
    refused = [line for line in deployed.log("server") if "its own code" in line["message"]]
    assert [(line["run"], line["level"], line["message"]) for line in refused] == [
        (number, "error", "refused: the bundle brings its own code: evil.py")
    ]
    assert not list(marks.glob("imported-by-*"))
    assert not list((deployed.state / "flwr" / "apps").rglob("*.py"))


def test_a_node_refuses_code_from_a_server_that_runs_it(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator of a server can remove the server's check."""
    flower = Path(sys.executable).with_name("flwr-serverapp")
    shim = deployed.state / "bin" / "flwr-serverapp"
    original = shim.read_text()
    shim.write_text(f'#!/bin/sh\nSIDE=server exec {flower} "$@"\n')
    try:
        _, marks = submit_code(deployed, "operator")
        until((marks / "reply").is_file, "the nodes' reply")
    finally:
        shim.write_text(original)
    assert "ForeignBundle" in (marks / "reply").read_text()
    line = "^refused: the bundle brings its own code: evil.py$"  # at the one of four that it asked
    assert [name for name in ("good", *OTHERS) if deployed.logged(name, line)]
    assert (marks / "imported-by-server").exists()


def test_private_files_are_closed_to_other_users(deployed: Deployment) -> None:
    """Folders and programs 0700, other files 0600, after a run."""
    public = {"ca.crt", "server.crt"}  # and nodes' public keys
    seen = set()
    for state in (deployed.state, deployed.node("good"), deployed.node("older"), deployed.keys):
        for path in (state, *state.rglob("*")):
            mode = path.lstat().st_mode & 0o777
            if path.name in public or path.suffix == ".pub":
                assert not mode & 0o022, path
            else:
                assert not mode & 0o077, (path, oct(mode))
            seen.add(path.name)
    private = "secret token connection.toml superlink.db server.log node.log worker.sock node.json"
    assert set(private.split()) <= seen
