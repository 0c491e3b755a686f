"""What passes the gateway: sizes, a missing server behind it, and counted bytes."""

from __future__ import annotations

import logging
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fronts import LARGEST, PUSH, Front, make_state
from gateways import PATIENCE, Client, Lines, register, resident, until

from deployment import server_up as up
from deployment.hosting.child import Child
from deployment.hosting.keys import make_authority, make_server
from deployment.hosting.processes import Supervisor
from fedpeft.errors import UserError
from fedpeft.page.ports import free_port
from server.exchange.wire_bytes import read_wire


def test_call_of_a_node_passes_completely_and_is_not_logged(front: Front) -> None:
    body = b"x" * 3_000_000
    with front.http() as client:
        extra = {"x-forwarded-for": "1.2.3.4", "cookie": "secret", "flwr-version": "7"}
        answer = client.post(PUSH, content=body, headers=front.node.headers() | extra)
    assert (answer.status_code, answer.text) == (200, "upstream got 3000000")
    assert answer.http_version == "HTTP/2"
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


def test_large_response_arrives_completely(front: Front) -> None:
    with front.http() as client:
        answer = client.post("/v1/fleet/pull-object", headers=front.node.headers())
    assert answer.content == b"x" * 5_000_000


def test_many_requests_share_one_connection(front: Front) -> None:
    with front.http() as client:
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


def test_body_above_the_limit_is_refused(front: Front) -> None:
    headers = front.node.headers()
    assert front.ask(PUSH, headers, length=LARGEST * 10**6 + 1) == 413
    with front.http() as client:
        content = b"x" * (LARGEST * 10**6 + 1)
        assert client.post(PUSH, content=content, headers=headers).status_code == 413
    assert "--max-body" in front.line_with("the message is too large")
    assert front.seen == []


def test_body_at_the_limit_passes(front: Front) -> None:
    with front.http() as client:
        body = b"x" * LARGEST * 10**6
        assert client.post(PUSH, content=body, headers=front.node.headers()).status_code == 200


def test_refusal_by_the_server_behind_is_logged(front: Front) -> None:
    assert front.ask("/v1/fleet/unknown-node", front.node.headers()) == 401
    assert "no signature of a node" in front.line_with("refused 127.0.0.1 POST /v1/fleet/unknown-n")


def test_request_is_passed_on_again_while_the_server_behind_is_busy(front: Front) -> None:
    """SQLite's lock can keep a writer of the SuperLink waiting for too long."""
    assert front.ask("/v1/fleet/busy", front.node.headers()) == 200
    assert [path for path, _ in front.seen].count("/v1/fleet/busy") == 2


def test_error_of_the_server_behind_is_passed_back_in_the_end(front: Front) -> None:
    assert front.ask("/v1/fleet/broken", front.node.headers()) == 500
    assert [path for path, _ in front.seen].count("/v1/fleet/broken") == 3


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
        until(child.ready)
        client = Client(state)
        assert client.ask(PUSH, front.node.headers()) == 502
        line = client.logged(
            "127.0.0.1 POST /v1/fleet/push-object: the SuperLink does not", lines.texts
        )
        assert ("certificate verify failed" in line) == stranger
        assert "refused" not in line
    finally:
        supervisor.stop()
        thread.join(PATIENCE)
    assert front.seen == []


def test_wire_bytes_are_those_at_the_socket(front: Front) -> None:
    """A relay counts the same bytes between the client and the gateway."""
    before = read_wire(front.state.path).get(front.node.node_id, {"up": 0, "down": 0})
    with relay(front.address) as (port, sums):
        base = f"https://localhost:{port}"
        with httpx.Client(
            base_url=base, verify=front.context, http2=True, trust_env=False
        ) as client:
            answer = client.post(PUSH, content=b"x" * 100_000, headers=front.node.headers())
            assert answer.status_code == 200
    wire = lambda: read_wire(front.state.path).get(front.node.node_id, before)  # noqa: E731
    until(lambda: wire()["down"] - before["down"] >= sums["down"])
    after = wire()
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
        self._thread.join(PATIENCE)
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


def test_a_name_is_no_address_to_listen_on(tmp_path: Path) -> None:
    server = up.Server(tmp_path / "state", tmp_path, "fl.example.org")
    with pytest.raises(UserError, match=r"--host 'fl.example.org': expected an IP address"):
        up.up(server, as_json=False)


def test_memory_of_the_gateway_is_small_when_idle(front: Front) -> None:
    assert resident(front.pid) < 120
