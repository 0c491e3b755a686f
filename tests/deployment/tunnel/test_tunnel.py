"""The tunnel between the SuperNode and the server's gateway."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import h2.config
import h2.connection
import httpx
import pytest
from tunnels import TIMING, Gateway, Running, gateway, tunnel
from workers import PATIENCE, eventually, logged, other_user

from clients.folder import NodeFolder
from deployment.hosting.keys import make_authority
from deployment.hosting.timing import Timing
from deployment.tunnel.connection import Connection
from deployment.tunnel.tunnel import RECEIVE
from fedpeft.page.ports import LOOPBACK
from simulations.benchmarks.parts.relay import Relay

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"
SIGNED = {
    "flwr-public-key": "key",
    "flwr-signature": "signature 1",
    "flwr-timestamp": "time 1",
    "content-type": "application/protobuf",
}


@contextmanager
def pair(folder: Path, timing: Timing = TIMING) -> Iterator[tuple[Gateway, Running, httpx.Client]]:
    """Yield a gateway, a tunnel to it, and a client of the tunnel."""
    with (
        gateway(folder) as far,
        tunnel(folder / "state", far.port, far.keys / "ca.crt", timing=timing) as near,
        near.client() as client,
    ):
        yield far, near, client


def state_of(near: Running) -> dict[str, object]:
    path = NodeFolder(near.state).tunnel
    return json.loads(path.read_text()) if path.exists() else {}


def test_requests_arrive_unchanged_and_without_other_headers(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, client):
        for number in range(3):
            body = bytes([number]) * (number * 1_000_000)
            signed = {**SIGNED, "flwr-signature": f"signature {number}"}
            response = client.post(PUSH, content=body, headers=signed)
            assert (response.status_code, response.content) == (200, body)
            assert response.headers["content-type"] == "application/protobuf"
            (arrived,) = far.received[number:]
            assert (arrived.path, arrived.body, arrived.version) == (PUSH, body, "2")
            assert arrived.headers == {"host": f"localhost:{far.port}", **signed}
        assert state_of(near)["connected"]
        assert NodeFolder(near.state).tunnel.stat().st_mode & 0o777 == 0o600
        assert "signature" not in str(logged(near.state))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PUSH, 403),
        ("POST", "/v1/control/start-run", 403),
        ("POST", "/v1/fleet/../control/start-run", 403),
        ("POST", "/v1/fleet/push-object?x=1", 403),
    ],
)
def test_other_requests_are_not_forwarded(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    with pair(tmp_path) as (far, near, _):
        raw = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1".encode()
        assert f" {status} ".encode() in ask(near, raw)
        assert not far.received


def test_a_body_without_a_length_or_too_large_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, _):
        line = f"POST {PUSH} HTTP/1.1\r\nHost: x\r\n"
        chunked = f"{line}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode()
        assert b" 411 " in ask(near, chunked)
        assert b" 413 " in ask(near, f"{line}Content-Length: {2 << 30}\r\n\r\n".encode())
        assert ask(near, b"nonsense\r\n\r\n") == b""
        assert not far.received


@contextmanager
def line_to(near: Running) -> Iterator[ssl.SSLSocket]:
    """Open a TLS connection to a tunnel."""
    context = ssl.create_default_context(cafile=near.ca)
    with (
        socket.create_connection((LOOPBACK, near.port), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as line,
    ):
        yield line


def ask(near: Running, request: bytes) -> bytes:
    """Return the answer to raw bytes."""
    with line_to(near) as line:
        line.sendall(request)
        answer = b""
        while piece := line.recv(4096):
            answer += piece
        return answer


def test_another_user_of_this_machine_is_refused(tmp_path: Path) -> None:
    user = other_user()
    program = (
        "import os, socket, ssl, sys\n"
        "context = ssl._create_unverified_context()\n"
        "os.setuid(int(sys.argv[1]))\n"
        "plain = socket.socket()\n"
        "plain.connect((b'127.0.0.1', int(sys.argv[2])))\n"
        "line = context.wrap_socket(plain)\n"
        "try:\n"
        "    line.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n"
        "    print(line.recv(100))\n"
        "except OSError: print(b'')\n"
    )
    with pair(tmp_path) as (far, near, _):
        command = [sys.executable, "-c", program, str(user), str(near.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout.strip() == "b''"
        assert not far.received
        assert f"refused a connection of user {user}: expected this node's" in logged(near.state)


def test_a_restarted_gateway_is_reached_again(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, client):
        assert client.post(PUSH, content=b"1").status_code == 200
        far.stop()
        eventually(lambda: not state_of(near)["connected"])
        assert "no server answers" in str(logged(near.state)) or "closed" in str(logged(near.state))
        late = threading.Timer(2, far.start)
        late.start()
        assert client.post(PUSH, content=b"2").status_code == 200  # it waited
        late.join()
        assert [each.body for each in far.received] == [b"1", b"2"]
        assert sum("no server answers" in line for line in logged(near.state)) <= 1
        eventually(lambda: bool(state_of(near)["connected"]))
        assert logged(near.state).count("connected to the server") == 2


def test_a_heartbeat_does_not_wait_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    """Other requests do; Flower's client waits only 5 s for a heartbeat."""
    timing = replace(TIMING, beat=0.1)
    with pair(tmp_path, timing) as (far, _, client), ThreadPoolExecutor() as pool:
        far.stop()
        waiting = pool.submit(client.post, PUSH, content=b"x")
        assert client.post("/v1/fleet/send-node-heartbeat", content=b"").status_code == 503
        assert not waiting.done()
        far.start()
        assert waiting.result().content == b"x"


def test_a_request_is_repeated_once_when_its_connection_breaks(tmp_path: Path) -> None:
    with gateway(tmp_path) as far, Relay(far.port) as line:
        ca = far.keys / "ca.crt"
        with tunnel(tmp_path / "state", line.port, ca) as near, near.client() as client:

            async def broken_once(path: str, body: bytes) -> tuple[int, bytes]:
                if len(far.received) in (1, 3, 4):
                    line.cut()
                    await asyncio.sleep(60)
                return 200, b"answer"

            far.answer = broken_once
            assert client.post(PUSH, content=b"x").content == b"answer"
            assert [each.body for each in far.received] == [b"x", b"x"]
            # The second time, the SuperNode has to repeat it.
            assert client.post(PUSH, content=b"y").status_code == 502
            assert client.post(PUSH, content=b"y").content == b"answer"


@pytest.mark.long
def test_a_line_that_stalls_is_given_up_and_made_again(tmp_path: Path) -> None:
    with gateway(tmp_path) as far, Relay(far.port) as line:
        ca = far.keys / "ca.crt"
        timing = replace(TIMING, quiet=2.0)
        with (
            tunnel(tmp_path / "state", line.port, ca, timing=timing) as near,
            near.client() as client,
            ThreadPoolExecutor() as pool,
        ):
            assert client.post(PUSH, content=b"1").content == b"1"
            line.stall()
            waiting = pool.submit(client.post, PUSH, content=b"2")
            eventually(lambda: "nothing arrived for 4 s" in str(logged(near.state)))
            line.resume()
            assert waiting.result().content == b"2"
            assert line.accepted >= 2


def test_an_empty_pull_is_repeated_until_there_is_a_message(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, _, client):

        async def third(path: str, body: bytes) -> tuple[int, bytes]:
            return 200, b"message" if len(far.received) == 3 else b""

        far.answer = third
        begun = time.monotonic()
        assert client.post(PULL, content=b"node", headers=SIGNED).content == b"message"
        assert time.monotonic() - begun >= 2 * TIMING.pulls
        assert [each.headers["flwr-signature"] for each in far.received] == ["signature 1"] * 3
        far.answer = empty
        assert client.post(PUSH, content=b"x").content == b""  # not a pull: sent once
        assert len(far.received) == 4


async def empty(path: str, body: bytes) -> tuple[int, bytes]:
    return 200, b""


def test_a_signature_that_grew_too_old_is_not_held_against_the_node(tmp_path: Path) -> None:
    """On 401 the SuperNode ends; on 503 it signs again."""
    for age, status in ((1e-6, 503), (PATIENCE, 401)):
        with pair(tmp_path / str(status), replace(TIMING, signature=age)) as (far, _, client):

            async def late(path: str, body: bytes, far: Gateway = far) -> tuple[int, bytes]:
                return (200, b"") if len(far.received) < 3 else (401, b"")

            far.answer = late
            assert client.post(PULL, content=b"node").status_code == status


def test_a_message_of_a_run_that_has_ended_is_gone_and_not_forbidden(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, _, client):

        async def ended(path: str, body: bytes) -> tuple[int, bytes]:
            return 403, b""

        far.answer = ended
        expected = dict.fromkeys(RECEIVE, 410) | {PULL: 403, PUSH: 403}
        answers = {path: client.post(path, content=b"node").status_code for path in expected}
        assert answers == expected


def test_a_supernode_that_leaves_takes_its_pull_along(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, _):
        arrived = threading.Event()

        async def held(path: str, body: bytes) -> tuple[int, bytes]:
            arrived.set()
            await asyncio.sleep(2 * PATIENCE)
            return 200, b"lost"

        far.answer = held
        with line_to(near) as line:
            line.sendall(f"POST {PULL} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            assert arrived.wait(PATIENCE)
        eventually(lambda: far.cancelled == [PULL])


def test_a_slow_response_keeps_the_supernode_waiting(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, _):
        released = threading.Event()

        async def slow(path: str, body: bytes) -> tuple[int, bytes]:
            assert await asyncio.to_thread(released.wait, PATIENCE)
            return 200, b"late"

        far.answer = slow
        with line_to(near) as line:
            line.sendall(f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            answer = line.recv(4096)
            assert answer.startswith(b"HTTP/1.1 102 ")
            released.set()
            while b"late" not in answer:
                piece = line.recv(4096)
                assert piece, answer
                answer += piece


def test_a_wrong_authority_and_a_server_without_http2_are_named(tmp_path: Path) -> None:
    make_authority(tmp_path / "other")
    wrong = tmp_path / "other" / "ca.crt"
    with gateway(tmp_path) as far:
        with tunnel(tmp_path / "a", far.port, wrong) as near:
            eventually(lambda: "is refused" in str(state_of(near)))
            problem = str(state_of(near)["problem"])
            assert problem.startswith(f"localhost:{far.port}: its certificate is refused: ")
            assert problem.endswith(f"; is {wrong} the right CA?")
        with tunnel(tmp_path / "b", far.port, far.keys / "ca.crt", "127.0.0.2") as near:
            eventually(lambda: "is refused" in str(state_of(near)))  # not in the certificate
    with socket.socket() as silent:
        silent.bind((LOOPBACK, 0))
        silent.listen()
        with tunnel(tmp_path / "c", silent.getsockname()[1], wrong) as near:
            assert not state_of(near)


def test_a_strangers_server_at_the_tunnels_port_gets_no_request(tmp_path: Path) -> None:
    with pair(tmp_path) as (_, near, _client):
        near.process.send_signal(signal.SIGKILL)
        near.process.wait()
        with gateway(tmp_path / "stranger") as stranger:
            stranger.stop()
            stranger.port = near.port
            stranger.start()
            with near.client() as client, pytest.raises(httpx.ConnectError, match="certificate"):
                client.post(PUSH, content=b"secret", headers=SIGNED)
            assert not stranger.received


def test_a_taken_port_ends_the_tunnel_with_a_line(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, _):
        command = [
            sys.executable,
            "-P",
            "-m",
            "deployment.tunnel.tunnel",
            str(near.state),
            str(near.port),
        ]
        done = subprocess.run([*command, "localhost", str(far.port), "x"], timeout=PATIENCE)
        assert done.returncode == 1
        assert f"cannot listen at {LOOPBACK}:{near.port} (Address already in use)" in str(
            logged(near.state)
        )


def test_a_header_that_is_not_ascii_is_no_mistake_of_the_tunnel(tmp_path: Path) -> None:
    with pair(tmp_path) as (far, near, client):
        head = f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nX-Name: ".encode()
        assert b" 200 " in ask(near, head + b"\xff\xe9\r\nConnection: close\r\n\r\n1")
        assert ask(near, b"POST /\xff HTTP/1.1\r\nHost: x\r\n\r\n") == b""  # no valid HTTP
        assert client.post(PUSH, content=b"2").content == b"2"
        assert [each.body for each in far.received] == [b"1", b"2"]
        assert not any("exception" in line.lower() for line in logged(near.state))


def test_a_slow_group_for_keys_is_not_offered(tmp_path: Path) -> None:
    """Whoever reaches the port could otherwise choose what a handshake costs."""
    with pair(tmp_path) as (_, near, _client):
        for group, offered in (("prime256v1", True), ("secp521r1", False)):
            context = ssl.create_default_context(cafile=near.ca)
            context.set_ecdh_curve(group)
            with socket.create_connection((LOOPBACK, near.port), PATIENCE) as plain:
                try:
                    context.wrap_socket(plain, server_hostname=LOOPBACK).close()
                    assert offered
                except (ssl.SSLError, ConnectionError):
                    assert not offered


def test_the_tunnel_notes_that_the_supernode_asks_for_work(tmp_path: Path) -> None:
    """Also while a request waits; a heartbeat is no question."""
    with pair(tmp_path) as (far, near, client), ThreadPoolExecutor() as pool:
        folder, released = NodeFolder(near.state), threading.Event()

        async def held(path: str, body: bytes) -> tuple[int, bytes]:
            assert await asyncio.to_thread(released.wait, PATIENCE)
            return 200, b"message"

        assert client.post("/v1/fleet/send-node-heartbeat", content=b"").status_code == 200
        assert not folder.asked.exists()
        far.answer = held
        waiting = pool.submit(client.post, PULL, content=b"node")
        eventually(folder.asked.exists)
        first = folder.asked.read_text()
        eventually(lambda: folder.asked.read_text() != first)
        released.set()
        assert waiting.result().content == b"message"


def test_the_tunnel_notes_whether_the_server_knows_the_key(tmp_path: Path) -> None:
    """The gateway's answer is in tests/deployment/gateway/test_gateway_admission.py."""
    answers = {
        "unknown": (412, b'{"detail": "The key of this node is not registered at the server."}'),
        "online already": (412, b'{"detail": "Node is already online"}'),
        "known": (200, b"fine"),
    }
    with pair(tmp_path) as (far, near, client):
        marker = NodeFolder(near.state).unknown_key
        for name in ("unknown", "unknown", "known", "unknown", "online already"):
            status, body = answers[name]

            async def answer(
                path: str, content: bytes, status: int = status, body: bytes = body
            ) -> tuple[int, bytes]:
                return status, body

            far.answer = answer
            response = client.post("/v1/fleet/activate-node", content=b"")
            assert (response.status_code, response.content) == (status, body)
            assert marker.exists() == (name == "unknown")


def test_an_answer_to_a_request_that_was_given_up_is_dropped() -> None:
    """The answer arrives in the moment in which the SuperNode leaves."""

    async def run() -> None:
        reader, writer = asyncio.StreamReader(), Writer()
        line = Connection(reader, writer, "localhost", 60.0)  # type: ignore[arg-type]
        server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        server.initiate_connection()
        running = asyncio.create_task(line.run())
        await asyncio.sleep(0)
        stream = line.open(PUSH, [])
        await stream.send(b"", last=True)
        waiting = asyncio.create_task(stream.response())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        server.receive_data(bytes(writer.sent))
        server.send_headers(1, [(":status", "200")], end_stream=True)
        reader.feed_data(server.data_to_send())
        while not reader.at_eof() and reader._buffer:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        line.open(PUSH, [])  # the connection goes on
        reader.feed_eof()
        assert "the server closed the connection" in await running

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


class Writer:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent, self.transport = bytearray(), self

    def write(self, content: bytes) -> None:
        self.sent += content

    async def drain(self) -> None: ...

    def abort(self) -> None: ...
