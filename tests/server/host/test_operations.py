"""The operations endpoint over real HTTP: what it gives, and to whom it gives nothing."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import shutil
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from finished import finished_run
from servers import operations, server_state, superlink

from fedpeft.child import Child
from fedpeft.ports import free_port
from fedpeft.processes import Supervisor
from server.host.operations import serve
from server.host.state import ServerState
from server.remote.connection import secure_line
from server.runfolder import RunFolder


@dataclass
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage = field(repr=False)


@dataclass
class Server:
    state: ServerState
    supervisor: Supervisor

    def get(self, path: str, token: str | None = None, **headers: str) -> Answer:
        """GET a path of the endpoint; with the right token unless another is given."""
        token = self.state.connection().token if token is None else token
        line = self.line()
        line.request("GET", path, headers={"Authorization": f"Bearer {token}".encode()} | headers)
        answer = line.getresponse()
        found = Answer(answer.status, answer.read(), answer.headers)
        line.close()
        return found

    def line(self) -> http.client.HTTPSConnection:
        """Return a connection to the endpoint."""
        connection = self.state.connection()
        return secure_line(connection.operations, connection.ca, 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The endpoint of a server with two runs and one process, but without a SuperLink."""
    state = server_state(tmp_path_factory.mktemp("operations"))
    for name in ("first", "second"):
        shutil.copytree(finished_run("method.d=16"), state.path / "runs" / name)
    supervisor = Supervisor([Child("sleeper", ["sleep", "600"])], logging.getLogger("test"))
    endpoint = serve(state, supervisor)
    started = threading.Event()
    threads = [
        threading.Thread(target=supervisor.run, args=(started.set,)),
        threading.Thread(target=endpoint.serve_forever),
    ]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    yield Server(state, supervisor)
    supervisor.stop()
    endpoint.shutdown()
    endpoint.server_close()
    for thread in threads:
        thread.join()


def test_health_names_what_is_up(server: Server) -> None:
    answer = server.get("/health", token="")
    health = json.loads(answer.body)
    assert answer.status == 503
    assert health["superlink"] is False
    assert health["children"] == {
        "sleeper": {"pid": server.supervisor.pids["sleeper"], "restarts": 0}
    }
    assert answer.body.count(b"\n") == 1


@pytest.mark.slow
def test_with_a_superlink_it_is_healthy(server: Server) -> None:
    with superlink(server.state):
        assert server.get("/health", token="").status == 200
        # Another endpoint, one of whose processes does not run.
        ports = {**server.state.ports, "operations": free_port()}
        dead = Supervisor([Child("nginx", ["none"])], logging.getLogger("test"))
        other = Server(replace(server.state, ports=ports), dead)
        with operations(other.state, dead):
            answer = other.get("/health", token="")
        assert answer.status == 503
        assert json.loads(answer.body)["children"] == {"nginx": {"pid": None, "restarts": 0}}
        assert b"fedpeft_up 1.0" in server.get("/metrics", token="").body
    assert server.get("/health", token="").status == 503


def test_metrics_need_no_token(server: Server) -> None:
    answer = server.get("/metrics", token="")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'fedpeft_child_up{child="sleeper"} 1.0' in answer.body


def test_a_run_comes_home_as_it_is(server: Server) -> None:
    assert json.loads(server.get("/runs").body) == ["first", "second"]
    folder = server.state.path / "runs" / "first"
    listed = json.loads(server.get("/runs/first").body)
    assert {"rounds.jsonl", "result.json", "vector.safetensors", "experiment.toml"} <= set(listed)
    for name, size in listed.items():
        content = (folder / name).read_bytes()
        answer = server.get(f"/runs/first/{name}?from=0")
        assert (answer.status, answer.body, len(answer.body)) == (200, content, size)
        assert answer.headers["X-SHA256"] == hashlib.sha256(content).hexdigest()


def test_growing_files_are_read_on_from_an_offset(server: Server) -> None:
    content = (server.state.path / "runs" / "first" / "bytes.jsonl").read_bytes()
    for offset in (1, len(content) - 1, len(content)):
        answer = server.get(f"/runs/first/bytes.jsonl?from={offset}")
        assert (answer.status, answer.body) == (200, content[offset:])
        assert "X-SHA256" not in answer.headers
    assert server.get(f"/runs/first/bytes.jsonl?from={len(content) + 1}").status == 416
    for wrong in ("-1", "x", "1.5", "²", "9" * 30):
        assert server.get(f"/runs/first/bytes.jsonl?from={quote(wrong)}").status == 400


def test_a_large_file_is_streamed(server: Server) -> None:
    """64 MB pass, while this process, which sends and receives, holds a few pieces at a time."""
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
def test_without_the_token_runs_stay_closed(
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
def test_only_plain_files_of_a_run_are_given(server: Server, name: str) -> None:
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


def test_a_link_is_no_run(server: Server, tmp_path: Path) -> None:
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
def test_pages_of_the_web_cannot_ask_by_a_name_of_theirs(
    server: Server, host: str, status: int, path: str
) -> None:
    assert server.get(path, Host=host).status == status


def test_nothing_else_is_there(server: Server) -> None:
    for path in ("/", "/metrics/", "/health/x", "/runs/a/b/c", "/../token", "/%2fruns"):
        assert server.get(path).status == 404
    line = server.line()
    for method in ("POST", "PUT", "DELETE"):
        line.request(method, "/runs/first")
        answer = line.getresponse()
        assert answer.status == 501
        answer.read()
    line.close()


def test_a_reader_that_goes_away_does_no_harm(
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


def test_plain_http_and_who_says_nothing_get_nothing(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    port = server.state.ports["operations"]
    with socket.create_connection(("127.0.0.1", port), 10) as silent:  # holds nobody up
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with suppress(ConnectionResetError):
                assert b"HTTP/" not in plain.recv(1000)
        assert server.get("/runs").status == 200
        silent.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_that_goes_on_is_said_to_be_in_use(server: Server) -> None:
    folder = RunFolder(server.state.path / "runs" / "first")
    assert server.get("/runs/first").headers["X-In-Use"] == "no"
    with folder.locked():
        assert server.get("/runs/first").headers["X-In-Use"] == "yes"
    assert server.get("/runs/first").headers["X-In-Use"] == "no"


def test_it_is_bound_to_loopback_only(server: Server) -> None:
    with pytest.raises(OSError, match="in use"):
        serve(server.state, server.supervisor)
    bound = Path("/proc/net/tcp").read_text().upper()
    assert f"0100007F:{server.state.ports['operations']:04X} 00000000:0000 0A" in bound
