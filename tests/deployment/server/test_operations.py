"""The operations endpoint over real HTTPS: its answers and its refusals."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import shutil
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from finished import finished_run
from gateways import PATIENCE
from servers import operations, server_folder, superlink

from deployment import operations as operations_module
from deployment.hosting.child import Child
from deployment.hosting.processes import Supervisor
from deployment.operator.connection import secure_line
from deployment.server.folder import ServerFolder
from fedpeft.page.ports import free_port
from fedpeft.runs.folder import RunFolder


@dataclass
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage = field(repr=False)


@dataclass
class Server:
    state: ServerFolder
    supervisor: Supervisor

    def get(self, path: str, token: str | None = None, **headers: str) -> Answer:
        """GET a path of the endpoint, by default with the right token."""
        token = self.state.connection().token if token is None else token
        line = self.line()
        line.request("GET", path, headers={"Authorization": f"Bearer {token}".encode()} | headers)
        answer = line.getresponse()
        complete = Answer(answer.status, answer.read(), answer.headers)
        line.close()
        return complete

    def line(self) -> http.client.HTTPSConnection:
        """Return a connection to the endpoint."""
        connection = self.state.connection()
        return secure_line(connection.operations, connection.ca, PATIENCE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The endpoint of a server with two runs and one process, without a SuperLink."""
    state = server_folder(tmp_path_factory.mktemp("operations"))
    for name in ("first", "second"):
        shutil.copytree(finished_run("method.d=16"), state.path / "runs" / name)
    supervisor = Supervisor([Child("sleeper", ["sleep", "600"])], logging.getLogger("test"))
    started = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(started.set,))
    thread.start()
    assert started.wait(PATIENCE)
    with operations(state, supervisor):
        yield Server(state, supervisor)
    supervisor.stop()
    thread.join()


def test_health_lists_the_processes(server: Server) -> None:
    answer = server.get("/health", token="")
    health = json.loads(answer.body)
    assert answer.status == 503
    assert health["superlink"] is False
    assert health["children"] == {
        "sleeper": {"pid": server.supervisor.pids["sleeper"], "answers": True, "restarts": 0}
    }
    assert answer.body.count(b"\n") == 1


@pytest.mark.slow
def test_health_is_ok_with_a_superlink_and_all_processes(server: Server) -> None:
    with superlink(server.state):
        assert server.get("/health", token="").status == 200
        # Another endpoint, one of whose processes does not run.
        ports = {**server.state.ports, "operations": free_port()}
        dead = Supervisor([Child("gateway", ["none"])], logging.getLogger("test"))
        other = Server(replace(server.state, ports=ports), dead)
        with operations(other.state, dead):
            answer = other.get("/health", token="")
        assert answer.status == 503
        absent = {"pid": None, "answers": False, "restarts": 0}
        assert json.loads(answer.body)["children"] == {"gateway": absent}
        assert b"fedpeft_up 1.0" in server.get("/metrics", token="").body
    assert server.get("/health", token="").status == 503


def test_metrics_need_no_token(server: Server) -> None:
    answer = server.get("/metrics", token="")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'fedpeft_child_up{child="sleeper"} 1.0' in answer.body


def test_files_of_a_run_are_served_unchanged(server: Server) -> None:
    assert json.loads(server.get("/runs").body) == ["first", "second"]
    folder = server.state.path / "runs" / "first"
    listed = json.loads(server.get("/runs/first").body)
    assert {"rounds.jsonl", "result.json", "vector.safetensors", "experiment.toml"} <= set(listed)
    for name, size in listed.items():
        content = (folder / name).read_bytes()
        answer = server.get(f"/runs/first/{name}?from=0")
        assert (answer.status, answer.body, len(answer.body)) == (200, content, size)
        assert answer.headers["X-SHA256"] == hashlib.sha256(content).hexdigest()


def test_files_are_read_from_an_offset(server: Server) -> None:
    content = (server.state.path / "runs" / "first" / "bytes.jsonl").read_bytes()
    for offset in (1, len(content) - 1, len(content)):
        answer = server.get(f"/runs/first/bytes.jsonl?from={offset}")
        assert (answer.status, answer.body) == (200, content[offset:])
        assert "X-SHA256" not in answer.headers
    assert server.get(f"/runs/first/bytes.jsonl?from={len(content) + 1}").status == 416
    for wrong in ("-1", "x", "1.5", "²", "9" * 30):
        assert server.get(f"/runs/first/bytes.jsonl?from={quote(wrong)}").status == 400


def test_a_large_file_is_streamed(server: Server) -> None:
    """The process sends and receives 64 MB and holds only a few pieces at a time."""
    folder = server.state.path / "runs" / "large"
    folder.mkdir()
    with open(folder / "vector.safetensors", "wb") as file:
        file.truncate(64 << 20)
    line, token = server.line(), server.state.connection().token
    tracemalloc.start()
    try:
        line.request(
            "GET", "/runs/large/vector.safetensors", headers={"Authorization": f"Bearer {token}"}
        )
        answer, digest, count = line.getresponse(), hashlib.sha256(), 0
        while piece := answer.read(1 << 16):
            digest.update(piece)
            count += len(piece)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        line.close()
        shutil.rmtree(folder)
    assert (count, digest.hexdigest()) == (64 << 20, answer.headers["X-SHA256"])
    assert most < 4 << 20


@pytest.mark.parametrize("path", ["/runs", "/runs/first", "/runs/first/result.json", "/runs/none"])
@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_runs_require_the_token(
    server: Server, path: str, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = server.get(path, token=token)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert json.loads(answer.body) == {"error": "the token of connection.toml is needed"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert server.state.connection().token not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "../first/result.json",
        "%2e%2e%2ffirst%2fresult.json",
        "..",
        "../../token",
        "%2e%2e/%2e%2e/token",
        "privacy",
        "run.lock",
        "ledger.sqlite",
        "ledger.sqlite-wal",
        ".hidden.json",
        "link.json",
        "folder.json",
        "pipe.json",
        "result.json%00",
        "result.json/",
        "none.json",
    ],
)
def test_only_plain_files_of_a_run_are_served(server: Server, name: str) -> None:
    folder = server.state.path / "runs" / "second"
    if not (folder / "pipe.json").exists():
        for secret in ("run.lock", "ledger.sqlite", "ledger.sqlite-wal", ".hidden.json"):
            (folder / secret).write_text("secret")
        (folder / "link.json").symlink_to(server.state.path / "token")
        (folder / "folder.json").mkdir()
        os.mkfifo(folder / "pipe.json")
    answer = server.get(f"/runs/second/{name}")
    assert answer.status == 404
    assert set(json.loads(answer.body)) == {"error"}
    listed = set(json.loads(server.get("/runs/second").body))
    assert not listed & {"link.json", "folder.json", "pipe.json", "run.lock", "ledger.sqlite"}


def test_a_link_is_not_served_as_a_run(server: Server, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("{}")
    link = server.state.path / "runs" / "link"
    link.symlink_to(tmp_path)
    assert server.get("/runs/link").status == server.get("/runs/link/own.json").status == 404
    assert "link" not in json.loads(server.get("/runs").body)
    link.unlink()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:4000", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1:9092", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/runs"])
def test_host_header_must_name_loopback(server: Server, host: str, status: int, path: str) -> None:
    assert server.get(path, Host=host).status == status


def test_other_paths_and_methods_are_refused(server: Server) -> None:
    for path in ("/", "/metrics/", "/health/x", "/runs/a/b/c", "/../token", "/%2fruns"):
        assert server.get(path).status == 404
    line = server.line()
    for method in ("POST", "PUT", "DELETE"):
        line.request(method, "/runs/first")
        answer = line.getresponse()
        assert answer.status == 405
        answer.read()
    line.close()


def test_clients_that_disconnect_leave_no_traceback(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        line = server.line()
        token = server.state.connection().token
        line.request(
            "GET", "/runs/first/vector.safetensors", headers={"Authorization": f"Bearer {token}"}
        )
        line.close()
    assert server.get("/runs").status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_plain_http_and_silent_connections_get_no_answer(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    port = server.state.ports["operations"]
    with socket.create_connection(("127.0.0.1", port), 10) as silent:  # blocks no other client
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with suppress(ConnectionResetError):
                assert b"HTTP/" not in plain.recv(1000)
        assert server.get("/runs").status == 200
        silent.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_slow_group_for_keys_is_not_offered(server: Server) -> None:
    """Another user of this machine could otherwise choose what a handshake costs."""
    port, ca = server.state.ports["operations"], server.state.connection().ca
    for group, offered in (("prime256v1", True), ("secp521r1", False)):
        context = ssl.create_default_context(cafile=ca)
        context.set_ecdh_curve(group)
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            try:
                context.wrap_socket(line, server_hostname="localhost").close()
                assert offered
            except (ssl.SSLError, ConnectionError):
                assert not offered


def test_header_says_whether_a_run_is_in_use(server: Server) -> None:
    folder = RunFolder(server.state.path / "runs" / "first")
    assert server.get("/runs/first").headers["X-In-Use"] == "no"
    with folder.locked():
        assert server.get("/runs/first").headers["X-In-Use"] == "yes"
    assert server.get("/runs/first").headers["X-In-Use"] == "no"


def test_endpoint_is_bound_to_loopback_only(server: Server) -> None:
    with pytest.raises(OSError, match="in use"), operations(server.state, server.supervisor):
        pass
    bound = Path("/proc/net/tcp").read_text().upper()
    assert f"0100007F:{server.state.ports['operations']:04X} 00000000:0000 0A" in bound


def test_connection_without_a_request_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_PATIENCE", 0.2)
    connection = server.state.connection()
    context = ssl.create_default_context(cafile=connection.ca)
    for sent in (b"", b"GET /health HTTP/1.1\r\nHost: local"):
        with (
            socket.create_connection(("127.0.0.1", server.state.ports["operations"]), 10) as line,
            context.wrap_socket(line, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(sent)
            with suppress(ConnectionResetError, ssl.SSLEOFError):
                assert wrapped.recv(1) == b""


def test_unread_download_does_not_delay_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_PATIENCE", 2 * PATIENCE)
    state = replace(server.state, ports={**server.state.ports, "operations": free_port()})
    folder = state.path / "runs" / "unread"
    folder.mkdir()
    with open(folder / "vector.safetensors", "wb") as file:
        file.truncate(64 << 20)
    with operations(state):
        line = Server(state, server.supervisor).line()
        headers = {"Authorization": f"Bearer {state.connection().token}"}
        line.request("GET", "/runs/unread/vector.safetensors", headers=headers)
        answer = line.getresponse()
        begun = time.monotonic()
    assert time.monotonic() - begun < PATIENCE
    answer.close()
    line.close()
    shutil.rmtree(folder)
