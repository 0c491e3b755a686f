"""The gateway, a real process, in front of a real TLS server in place of the SuperLink."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gateways import Client, Lines, Node, make_nodes, register, resident, status

from fedpeft.errors import UserError
from fedpeft.hosting.child import Child
from fedpeft.hosting.keys import make_authority, make_server
from fedpeft.hosting.ports import free_port
from fedpeft.hosting.processes import Supervisor
from server.host import up
from server.host.folder import ServerFolder
from server.wire_bytes import read_wire

PUSH = "/v1/fleet/push-object"
LARGEST = 8  # megabytes


class Upstream(BaseHTTPRequestHandler):
    """Record the requests, and answer with the number of received bytes."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]

    def do_POST(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"upstream got {len(body)}".encode()
        if self.path.endswith("/pull-object"):
            answer = b"x" * 5_000_000
        self.send_response(401 if self.path.endswith("/unknown-node") else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Front(Client):
    """A running gateway, its log, and the requests that reached the server behind it."""

    node: Node
    lines: list[str]
    seen: list[tuple[str, dict[str, str]]]
    supervisor: Supervisor = field(repr=False)

    @property
    def pid(self) -> int:
        return self.supervisor.pids["gateway"]

    def line_with(self, words: str) -> str:
        return self.logged(words, self.lines)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder)
    make_server(folder, ["fl.example.org"], folder)
    return folder


@pytest.fixture(scope="module")
def node(keys: Path) -> Node:
    return make_nodes(keys, "north")[0]


@pytest.fixture(scope="module")
def upstream(keys: Path) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Upstream,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.request_queue_size = 100
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()
    serving.join()


def make_state(path: Path, keys: Path, control: int) -> ServerFolder:
    path.mkdir(parents=True)
    ports = {"public": free_port(), "control": control, "operations": 1}
    state = ServerFolder(path, keys, "127.0.0.1", ("fl.example.org",), ports)
    state._write()
    return state


@pytest.fixture(scope="module")
def running(
    keys: Path, node: Node, upstream: ThreadingHTTPServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    path = tmp_path_factory.mktemp("server") / "a state"
    state = make_state(path, keys, upstream.server_port)
    register(path, [node])
    log, lines = logging.Logger("gateway"), Lines()
    log.addHandler(lines)
    supervisor, up_now = Supervisor([up.gateway(state, LARGEST)], log), threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(up_now.set,))
    thread.start()
    try:
        assert up_now.wait(20), lines.texts
        seen = upstream.RequestHandlerClass.seen  # type: ignore[attr-defined]
        yield Front(state, node, lines.texts, seen, supervisor)
    finally:
        supervisor.stop()
        thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.fixture
def front(running: Front) -> Front:
    """The running gateway with an empty log and no requests."""
    del running.lines[:], running.seen[:]
    return running


# --- what passes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("http2", [False, True])
def test_call_of_a_node_passes_completely_and_is_not_logged(front: Front, http2: bool) -> None:
    body = b"x" * 3_000_000
    with front.http(http2) as client:
        extra = {"x-forwarded-for": "1.2.3.4", "cookie": "secret", "flwr-version": "7"}
        answer = client.post(PUSH, content=body, headers=front.node.headers() | extra)
    assert (answer.status_code, answer.text) == (200, "upstream got 3000000")
    assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
    ((path, headers),) = front.seen
    names = {name.lower(): value for name, value in headers.items()}
    assert path == PUSH
    assert names["content-length"] == "3000000"
    assert names["x-forwarded-for"] == "127.0.0.1"  # not what the client says it is
    assert names["flwr-version"] == "7"
    assert "cookie" not in names
    front.ask("/mark")
    front.line_with("refused 127.0.0.1 POST /mark")
    assert len(front.lines) == 1


@pytest.mark.parametrize("http2", [False, True])
def test_large_response_arrives_completely(front: Front, http2: bool) -> None:
    with front.http(http2) as client:
        answer = client.post("/v1/fleet/pull-object", headers=front.node.headers())
    assert answer.content == b"x" * 5_000_000


@pytest.mark.parametrize("http2", [False, True])
def test_many_requests_share_one_connection(front: Front, http2: bool) -> None:
    with front.http(http2) as client:
        for number in range(20):
            answer = client.post(PUSH, content=b"y" * number, headers=front.node.headers())
            assert answer.text == f"upstream got {number}"


def test_100_nodes_behind_one_address_are_not_limited(front: Front) -> None:
    """100 nodes send a request at once, as after a pause of the server."""
    statuses: list[int] = []

    def one() -> None:
        statuses.append(front.ask(PUSH, front.node.headers()))

    # One key has at most 32 connections; here a single node stands for all.
    for _ in range(5):
        nodes = [threading.Thread(target=one) for _ in range(20)]
        for thread in nodes:
            thread.start()
        for thread in nodes:
            thread.join()
    assert statuses == [200] * 100


# --- what is refused before the body is read -----------------------------------------------------


def changed(headers: dict[str, str], **values: str) -> dict[str, str]:
    return headers | {name.replace("_", "-"): value for name, value in values.items()}


def test_registered_key_without_signature_is_refused_before_the_body(front: Front) -> None:
    headers = front.node.headers()
    del headers["flwr-signature"]
    assert front.ask(PUSH, headers, length=5_000_000) == 401
    assert front.seen == []
    assert "no signature of a node" in front.line_with(f"refused 127.0.0.1 POST {PUSH}")


def test_signature_of_another_key_is_refused_before_the_body(front: Front, tmp_path: Path) -> None:
    (other,) = make_nodes(tmp_path, "other")
    stolen = {"flwr-public-key": front.node.headers()["flwr-public-key"]}
    assert front.ask(PUSH, other.headers() | stolen, length=5_000_000) == 401
    front.line_with("the signature is not of the node's key")


def test_signature_of_another_time_is_refused_before_the_body(front: Front) -> None:
    later = changed(front.node.headers(), flwr_timestamp=front.node.headers()["flwr-timestamp"])
    assert front.ask(PUSH, later, length=5_000_000) == 401
    front.line_with("the signature is not of the node's key")


@pytest.mark.parametrize("age", [306.0, 86400.0, -6.0])
def test_headers_outside_of_their_window_are_refused_before_the_body(
    front: Front, age: float
) -> None:
    assert front.ask(PUSH, front.node.headers(age), length=5_000_000) == 401
    front.line_with("the node's clock is wrong")
    assert front.seen == []


@pytest.mark.parametrize("age", [0.0, 290.0])
def test_headers_within_their_window_are_accepted(front: Front, age: float) -> None:
    assert front.ask(PUSH, front.node.headers(age), b"z") == 200


@pytest.mark.parametrize("http2", [False, True])
def test_unregistered_key_with_a_valid_signature_is_refused_before_the_body(
    front: Front, tmp_path: Path, http2: bool
) -> None:
    (stranger,) = make_nodes(tmp_path, "stranger")
    if not http2:
        assert front.ask(PUSH, stranger.headers(), length=5_000_000) == 401
    with front.http(http2) as client:
        answer = client.post("/v1/fleet/activate-node", headers=stranger.headers())
    assert answer.status_code == 412  # the SuperNode shows its operator the text
    assert "not registered" in answer.json()["detail"]
    front.line_with("its key is not registered (fedpeft server add-node)")
    assert front.seen == []


@pytest.mark.parametrize(
    "values",
    [
        {"flwr_public_key": "!"},
        {"flwr_public_key": "YWJj"},
        {"flwr_signature": "!"},
        {"flwr_signature": "YWJj"},
        {"flwr_timestamp": "yesterday"},
        {"flwr_timestamp": "2026-11-22T10:00:00"},
        {"flwr_timestamp": "9999-12-31T23:59:59+00:00"},
        {"flwr_signature": "A" * 3000},
    ],
)
def test_damaged_headers_are_refused(front: Front, values: dict[str, str]) -> None:
    assert front.ask(PUSH, changed(front.node.headers(), **values), length=100) == 401
    assert front.seen == []


def test_removed_node_is_refused_at_once_also_on_its_open_connection(front: Front) -> None:
    with front.http() as client:
        assert client.post(PUSH, headers=front.node.headers()).status_code == 200
        register(front.state.path, [])
        try:
            assert client.post(PUSH, headers=front.node.headers()).status_code == 401
        finally:
            register(front.state.path, [front.node])
        assert client.post(PUSH, headers=front.node.headers()).status_code == 200


def test_damaged_registry_refuses_all(front: Front) -> None:
    (front.state.path / "nodes.json").write_text("{")
    try:
        assert front.ask(PUSH, front.node.headers(), length=100) == 503
    finally:
        register(front.state.path, [front.node])
    front.line_with("nodes.json cannot be read")


def test_headers_are_never_logged(front: Front) -> None:
    headers = front.node.headers(306.0)
    assert front.ask(PUSH, headers) == 401
    front.line_with(f"POST {PUSH}")
    logged = " ".join(front.lines)
    for name in ("flwr-public-key", "flwr-timestamp", "flwr-signature"):
        assert name not in logged and headers[name] not in logged


# --- paths, methods, smuggling -------------------------------------------------------------------


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
def test_paths_outside_of_the_fleet_api_are_refused_with_cause(front: Front, path: str) -> None:
    assert front.ask(path, front.node.headers(), length=1000) == 403
    assert front.seen == []
    line = f"refused 127.0.0.1 POST {path}: only POST /v1/fleet/NAME is open to the outside"
    assert front.line_with(line) == line


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
        ("CONNECT", "localhost:22"),
        ("POST", "https://other/v1/control/start-run"),
        ("POST", "https://localhost/v1/fleet/push-object"),
    ],
)
def test_tricks_with_paths_and_methods_are_refused(front: Front, method: str, path: str) -> None:
    assert front.ask(path, front.node.headers(), method=method) == 403
    assert front.seen == []
    assert "is open to the outside" in front.line_with(f"refused 127.0.0.1 {method} {path}: ")


def test_long_and_unprintable_path_is_cut_and_shown_on_one_line(front: Front) -> None:
    assert front.ask("/" + "x" * 5000, length=0) == 403
    line = front.line_with("refused 127.0.0.1 POST /xxx")
    assert len(line) < 300
    assert front.ask("/\xe9\x9b", length=0) in (400, 403)


HIDDEN = b"POST /v1/control/start-run HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (b"Transfer-Encoding: chunked\r\nContent-Length: %d" % (5 + len(HIDDEN)), b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: identity", b""),
        (b"Content-Length: 0\r\nContent-Length: %d" % len(HIDDEN), b""),
        (b"Content-Length: 0, %d" % len(HIDDEN), b""),
        (b"Content-Length: +0", b""),
        (b"Content-Length: -1", b""),
        (b"Content-Length : 0", b""),
        (b"Content-Length:\r\n 0", b""),
        (b"Content-Length: 0\nX: y", b""),
        (b"Content-Length: 0\r\nX\x00: y", b""),
        (b"Content-Length: 0\r\nHost: b", b""),
        (b"Content-Length: 0\r\nX: a\rY: b", b""),
    ],
)
def test_smuggled_requests_are_refused(front: Front, lines: bytes, body: bytes) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in front.node.headers().items())
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\n" + signed.encode() + lines
    answer = front.send(head + b"\r\n\r\n" + body + HIDDEN)
    assert status(answer) in (400, 501)
    assert answer.count("HTTP/1.1") == 1  # the connection ends there
    assert front.seen == []
    front.line_with("refused 127.0.0.1")


def test_hidden_request_after_a_body_is_refused_by_its_path(front: Front) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in front.node.headers().items())
    head = f"POST {PUSH} HTTP/1.1\r\nHost: a\r\n{signed}Content-Length: 0\r\n\r\n".encode()
    answer = front.send(head + HIDDEN.replace(b"Host: a", b"Host: a\r\nConnection: close"))
    assert re.findall(r"HTTP/1\.1 (\d+)", answer) == ["200", "403"]
    assert [path for path, _ in front.seen] == [PUSH]


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n\r\n"],
)
def test_malformed_http_is_refused(front: Front, raw: bytes) -> None:
    assert status(front.send(raw)) in (400, 505)
    assert front.seen == []


def test_too_large_head_is_refused(front: Front) -> None:
    raw = b"POST / HTTP/1.1\r\n" + b"X: " + b"y" * 20_000
    assert status(front.send(raw)) == 431


def test_plain_http_is_refused_with_its_cause(front: Front) -> None:
    with socket.create_connection(front.address, 10) as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n\r\n")
        with line.makefile("rb") as answer:
            assert b"HTTP" not in answer.read()
    front.line_with("plain HTTP or another protocol; this port speaks TLS only")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_failed_handshake_of_a_node_with_another_authority_is_logged(
    front: Front, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    make_authority(tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.maximum_version = version
    with (
        socket.create_connection(front.address, 10) as line,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(line, server_hostname="localhost")
    assert "unknown ca" in front.line_with("TLS handshake with 127.0.0.1 failed")


def test_old_tls_is_refused(front: Front) -> None:
    context = ssl.create_default_context(cafile=front.state.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(front.address, 10) as line, pytest.raises(ssl.SSLError):
        context.wrap_socket(line, server_hostname="localhost")


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("http2", [False, True])
def test_body_above_the_limit_is_refused(front: Front, http2: bool) -> None:
    headers = front.node.headers() | {"content-length": str(LARGEST * 10**6 + 1)}
    if http2:
        with front.http(True) as client:
            content = b"x" * (LARGEST * 10**6 + 1)
            assert client.post(PUSH, content=content, headers=headers).status_code == 413
    else:
        assert front.ask(PUSH, headers) == 413
    assert "--max-body" in front.line_with("the message is too large")
    assert front.seen == []


def test_body_at_the_limit_passes(front: Front) -> None:
    body = b"x" * LARGEST * 10**6
    assert front.ask(PUSH, front.node.headers(), body) == 200


# --- the server behind ---------------------------------------------------------------------------


def test_refusal_by_the_server_behind_is_logged(front: Front) -> None:
    assert front.ask("/v1/fleet/unknown-node", front.node.headers()) == 401
    assert "no signature of a node" in front.line_with("refused 127.0.0.1 POST /v1/fleet/unknown-n")


@pytest.mark.parametrize("stranger", [False, True])
def test_missing_or_foreign_server_behind_gives_502(
    front: Front, keys: Path, tmp_path: Path, stranger: bool, upstream: ThreadingHTTPServer
) -> None:
    """A SuperNode tries again after a 502; the gateway sends nothing to a foreign server."""
    other_keys = tmp_path / "keys"
    make_authority(other_keys)
    make_server(other_keys, ["fl.example.org"], other_keys)
    control = upstream.server_port if stranger else free_port()
    state = make_state(tmp_path / "state", other_keys if stranger else keys, control)
    register(state.path, [front.node])
    log, lines = logging.Logger("gateway"), Lines()
    log.addHandler(lines)
    child = up.gateway(state, LARGEST)
    supervisor = Supervisor([Child("gateway", child.command)], log)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        limit = time.monotonic() + 20
        while not child.ready() and time.monotonic() < limit:
            time.sleep(0.05)
        client = Client(state)
        assert client.ask(PUSH, front.node.headers()) == 502
        line = client.logged(
            "127.0.0.1 POST /v1/fleet/push-object: the SuperLink does not", lines.texts
        )
        assert ("certificate verify failed" in line) == stranger
        assert "refused" not in line
    finally:
        supervisor.stop()
        thread.join(timeout=20)
    assert front.seen == []


# --- counts --------------------------------------------------------------------------------------


def test_wire_bytes_are_those_at_the_socket(front: Front) -> None:
    """A relay counts the same bytes between the client and the gateway."""
    before = read_wire(front.state.path).get(front.node.node_id, {"up": 0, "down": 0})
    with relay(front.address) as (port, sums):
        context = ssl.create_default_context(cafile=front.state.ca)
        with (
            socket.create_connection(("127.0.0.1", port), 10) as line,
            context.wrap_socket(line, server_hostname="localhost") as wrapped,
        ):
            signed = "".join(f"{name}: {value}\r\n" for name, value in front.node.headers().items())
            head = f"POST {PUSH} HTTP/1.1\r\nHost: a\r\n{signed}Connection: close\r\n"
            wrapped.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"x" * 100_000)
            with wrapped.makefile("rb") as answer:
                assert b"200" in answer.read()
    time.sleep(1.5)
    after = read_wire(front.state.path)[front.node.node_id]
    assert after["up"] - before["up"] == sums["up"] > 100_000
    assert after["down"] - before["down"] == sums["down"] > 1000


def test_full_disk_does_not_keep_nodes_out(front: Front) -> None:
    """Nothing can be written under the name of a folder either."""
    blocked = front.state.path / ".wire.json.tmp"
    pid = front.pid
    blocked.mkdir()
    try:
        assert front.ask(PUSH, front.node.headers()) == 200
        front.line_with("bytes on the wire cannot be saved")
        assert front.ask(PUSH, front.node.headers()) == 200
    finally:
        blocked.rmdir()
    assert front.pid == pid


class relay:
    """A TCP relay to an address that counts the bytes of one connection."""

    def __init__(self, address: tuple[str, int]):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address, self._sums = address, {"up": 0, "down": 0}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> tuple[int, dict[str, int]]:
        self._thread.start()
        return self._listener.getsockname()[1], self._sums

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        self._listener.close()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._address, 10) as server:
            back = threading.Thread(target=self._copy, args=(server, client, "down"))
            back.start()
            self._copy(client, server, "up")
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, way: str) -> None:
        while data := source.recv(65536):
            self._sums[way] += len(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


# --- settings ------------------------------------------------------------------------------------


def test_a_name_is_no_address_to_listen_on(tmp_path: Path) -> None:
    server = up.Server(tmp_path / "state", tmp_path, "fl.example.org")
    with pytest.raises(UserError, match=r"--host 'fl.example.org': expected an IP address"):
        up.up(server, as_json=False)


def test_memory_of_the_gateway_is_small_when_idle(front: Front) -> None:
    assert resident(front.pid) < 120
