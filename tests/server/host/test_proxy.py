"""nginx as it is configured, before a real TLS server that takes the SuperLink's place."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedpeft.child import Child
from fedpeft.errors import UserError
from fedpeft.keys import make_authority, make_server
from fedpeft.ports import free_port
from fedpeft.processes import Supervisor
from server.host import proxy
from server.host.outputs import read_nginx
from server.host.state import ServerState


class Upstream(BaseHTTPRequestHandler):
    """Keeps what arrives, and answers with the number of bytes it got."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]

    def do_POST(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"upstream got {len(body)}".encode()
        self.send_response(401 if self.path.endswith("/unknown-node") else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Front:
    """nginx, with what it logged and what came through."""

    state: ServerState
    lines: list[tuple[int, str]]
    seen: list[tuple[str, dict[str, str]]]

    def send(self, raw: bytes, ca: Path | None = None, tls: bool = True) -> str:
        """Send bytes as they are and return all of the answer."""
        with socket.create_connection(("127.0.0.1", self.state.ports["public"]), 10) as line:
            if not tls:
                line.sendall(raw)
                return line.makefile("rb").read().decode()
            context = ssl.create_default_context(cafile=ca or self.state.ca)
            with context.wrap_socket(line, server_hostname="localhost") as wrapped:
                wrapped.sendall(raw)
                return wrapped.makefile("rb").read().decode()

    def ask(self, method: str, path: str, body: bytes = b"", tls: bool = True) -> int:
        """Return the status of a request."""
        head = f"{method} {path} HTTP/1.1\r\nHost: fl.example.org\r\nConnection: close\r\n"
        head += f"X-Forwarded-For: 1.2.3.4\r\nContent-Length: {len(body)}\r\n\r\n"
        return int(self.send(head.encode() + body, tls=tls).split()[1])

    def logged(self, start: str) -> tuple[int, str]:
        """Wait for a line of the log that starts so, and return it."""
        limit = time.monotonic() + 10
        while True:
            for line in self.lines:
                if line[1].startswith(start):
                    return line
            assert time.monotonic() < limit, f"not logged: {start}; but {self.lines}"
            time.sleep(0.02)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.levelno, record.getMessage()))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder)
    make_server(folder, ["fl.example.org"], folder)
    return folder


@pytest.fixture(scope="module")
def upstream(keys: Path) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Upstream,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()
    serving.join()


def make_state(path: Path, keys: Path, control: int) -> ServerState:
    (path / "nginx").mkdir(parents=True)
    ports = {"public": free_port(), "control": control, "operations": 1}
    return ServerState(path, keys, "127.0.0.1", ("fl.example.org",), ports)


@pytest.fixture(scope="module")
def running(
    keys: Path, upstream: ThreadingHTTPServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    path = tmp_path_factory.mktemp("server") / "a state"
    state = make_state(path, keys, upstream.server_port)
    log, lines = logging.Logger("nginx"), Lines()
    log.addHandler(lines)
    command = proxy.command(state, proxy.write_configuration(state))
    child = Child("nginx", command, ready=lambda: proxy.answers(state), read=read_nginx)
    supervisor, up = Supervisor([child], log), threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(up.set,))
    thread.start()
    try:
        assert up.wait(20), lines.found
        yield Front(state, lines.found, upstream.RequestHandlerClass.seen)  # type: ignore[attr-defined]
    finally:
        supervisor.stop()
        thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.fixture
def front(running: Front) -> Front:
    """The running nginx; nothing has been asked, and nothing logged but its start."""
    del running.lines[:], running.seen[:]
    return running


def test_a_nodes_call_passes_whole_and_leaves_no_line(front: Front) -> None:
    body = b"x" * 3_000_000
    assert front.ask("POST", "/v1/fleet/push-messages", body) == 200
    ((path, headers),) = front.seen
    assert path == "/v1/fleet/push-messages"
    assert headers["Content-Length"] == "3000000"
    assert headers["X-Forwarded-For"] == "127.0.0.1"  # not what the client says it is
    front.ask("GET", "/mark")
    front.logged("refused 127.0.0.1 GET /mark")
    assert len(front.lines) == 1
    kept = [file for file in (front.state.path / "nginx").rglob("*") if file.is_file()]
    assert sorted(file.name for file in kept) == ["nginx.conf", "nginx.pid"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/stop-run",
        "/v1/runtime/acquire-task",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
        "/v1/fleet",
        "/v1/fleetx/pull-messages",
        "//v1/control/start-run",
        "/V1/FLEET/x/../../control/start-run",
    ],
)
def test_everything_but_the_fleet_is_refused_with_its_cause(front: Front, path: str) -> None:
    assert front.ask("POST", path) == 403
    assert front.seen == []
    line = f"refused 127.0.0.1 POST {path}: only /v1/fleet/ is open to the outside"
    assert front.logged(line) == (logging.WARNING, line)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/..%2fcontrol/start-run"),
        ("POST", "/v1/fleet/%252e%252e/control/start-run"),
        ("POST", "/v1/fleet//pull-messages"),
        ("POST", "/v1/control/../fleet/pull-messages"),
        ("POST", "/v1//fleet/pull-messages"),
        ("POST", "/v1/fleet/pull-messages/../../control/start-run"),
        ("POST", "/v1/fleet/pull-messages?x=/v1/control"),
        ("POST", "/v1/fleet/"),
        ("GET", "/v1/fleet/pull-messages"),
        ("POST", "https://other/v1/control/start-run"),
    ],
)
def test_tricks_with_paths_and_methods_are_refused(front: Front, method: str, path: str) -> None:
    assert front.ask(method, path) == 403
    assert front.seen == []
    shown = path.removeprefix("https://other")
    assert "is open to the outside" in front.logged(f"refused 127.0.0.1 {method} {shown}: ")[1]


def test_two_lengths_in_one_request_are_refused(front: Front) -> None:
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    head = b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Length: %d\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    assert front.send(head + hidden).split()[1] == "400"
    assert front.seen == []
    front.logged("refused 127.0.0.1 POST /v1/fleet/x: no proper HTTP request")


def test_plain_http_is_refused_with_its_cause(front: Front) -> None:
    assert front.ask("POST", "/v1/fleet/pull-messages", tls=False) == 400
    assert front.seen == []
    front.logged(
        "refused 127.0.0.1 POST /v1/fleet/pull-messages: plain HTTP; this port speaks TLS only"
    )
    assert len(front.lines) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_node_with_another_authority_is_named(
    front: Front, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    make_authority(tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", front.state.ports["public"]), 10) as line,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(line, server_hostname="localhost")
    level, text = front.logged("refused 127.0.0.1: TLS failed (")
    assert level == logging.WARNING
    assert "unknown ca" in text
    assert text.endswith(
        "does not trust the authority of this server's certificate: wrong ca.crt there)"
    )


def test_what_the_server_behind_refuses_is_said(front: Front) -> None:
    assert front.ask("POST", "/v1/fleet/unknown-node") == 401
    assert (
        "no signature of a node"
        in front.logged("refused 127.0.0.1 POST /v1/fleet/unknown-node: ")[1]
    )


def test_many_nodes_behind_one_address_are_not_held_up(front: Front) -> None:
    """100 nodes ask at once, as after a pause of the server."""
    statuses: list[int] = []

    def node() -> None:
        statuses.append(front.ask("POST", "/v1/fleet/pull-messages"))

    nodes = [threading.Thread(target=node) for _ in range(100)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join()
    assert statuses == [200] * 100


@pytest.mark.parametrize("stranger", [False, True])
def test_a_server_behind_that_is_away_or_not_ours(
    front: Front, keys: Path, tmp_path: Path, stranger: bool, upstream: ThreadingHTTPServer
) -> None:
    """nginx says 502, which a SuperNode takes for later, and never speaks to a stranger."""
    ours = tmp_path / "keys"
    make_authority(ours)
    make_server(ours, ["fl.example.org"], ours)
    control = upstream.server_port if stranger else free_port()
    state = make_state(tmp_path / "state", ours if stranger else keys, control)
    log, lines = logging.Logger("nginx"), Lines()
    log.addHandler(lines)
    command = proxy.command(state, proxy.write_configuration(state))
    supervisor = Supervisor([Child("nginx", command, read=read_nginx)], log)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        limit = time.monotonic() + 20
        while not proxy.answers(state) and time.monotonic() < limit:
            time.sleep(0.05)
        other = replace(front, state=state, lines=lines.found)
        assert other.ask("POST", "/v1/fleet/pull-messages") == 502
        line = "127.0.0.1 POST /v1/fleet/pull-messages: the SuperLink does not answer"
        assert other.logged(line)[0] == logging.WARNING
        assert any("certificate verify" in text for _, text in lines.found) == stranger
    finally:
        supervisor.stop()
        thread.join(timeout=20)
    assert front.seen == []


@pytest.mark.parametrize("name", ['a"b', "a$b", "a\\b", "a\nb"])
def test_paths_that_nginx_would_misread_are_refused(tmp_path: Path, name: str) -> None:
    state = ServerState(
        tmp_path / name, tmp_path, "0.0.0.0", (), {"public": 1, "control": 2, "operations": 3}
    )
    with pytest.raises(UserError, match="cannot stand in this path"):
        proxy.configuration(state)


@pytest.mark.parametrize(
    ("host", "written"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]"), ("[::1]", "[::1]")]
)
def test_addresses_to_listen_on(host: str, written: str) -> None:
    assert proxy.bracketed(host) == written


def test_a_name_is_no_address_to_listen_on() -> None:
    with pytest.raises(UserError, match=r"--host 'fl.example.org': expected an IP address"):
        proxy.bracketed("fl.example.org")
