"""Attacks on a real gateway while a registered node works: time limits, memory, floods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h2.config
import h2.connection
import h2.exceptions
import h2.settings
import pytest
from gateways import Client, Lines, Node, make_nodes, register, resident
from servers import server_folder, superlink
from superlinks import SuperLinkState

from fedpeft.hosting.processes import Supervisor
from server.host import up
from server.host.folder import ServerFolder
from server.host.gateway.limits import Limits

pytestmark = pytest.mark.long
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
PUSH = "/v1/fleet/push-object"
#: Attackers have an address of their own, as in reality; all of 127.0.0.0/8 is this machine.
ATTACKER = "127.0.0.66"


@dataclass
class Running(Client):
    """A gateway and a SuperLink with one registered node."""

    node: Node
    stranger: Node
    lines: list[str]
    supervisor: Supervisor = field(repr=False)

    @property
    def pid(self) -> int:
        return self.supervisor.pids["gateway"]

    def tcp(self) -> socket.socket:
        return socket.create_connection(self.address, 20, source_address=(ATTACKER, 0))

    def tls(self, *alpn: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.state.ca)
        context.set_alpn_protocols(list(alpn) or ["http/1.1"])
        return context.wrap_socket(self.tcp(), server_hostname="localhost")

    def head(self, node: Node, length: int, path: str = PUSH) -> bytes:
        """Return the signed head of a request."""
        signed = "".join(f"{name}: {value}\r\n" for name, value in node.headers().items())
        return (
            f"POST {path} HTTP/1.1\r\nHost: a\r\n{signed}Content-Length: {length}\r\n\r\n".encode()
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacks")
    state: ServerFolder = server_folder(folder)
    link = SuperLinkState(state.path / "superlink.db")
    node, stranger = make_nodes(folder, "north", "stranger")
    node.node_id = link.register(node.pem)
    register(state.path, [node])
    log, lines = logging.Logger("gateway"), Lines()
    log.addHandler(lines)
    supervisor = Supervisor([up.gateway(state, 64)], log)
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(ready.set,))
    with superlink(state):
        thread.start()
        try:
            assert ready.wait(20)
            yield Running(state, node, stranger, lines.texts, supervisor)
        finally:
            supervisor.stop()
            thread.join(20)


@contextlib.contextmanager
def working_node(running: Running) -> Iterator[list[float]]:
    """Send requests as the node all the time; yield the seconds that each took."""
    took: list[float] = []
    failed: list[str] = []
    stopping = threading.Event()

    def work(http2: bool) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node as ProtoNode

        node = ProtoNode(node_id=running.node.node_id)
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)
        body = request.SerializeToString()
        with running.http(http2) as client:
            while not stopping.is_set():
                start = time.monotonic()
                try:
                    answer = client.post(HEARTBEAT, content=body, headers=running.node.headers())
                    if answer.status_code != 200:
                        failed.append(f"{answer.status_code} {answer.text}")
                except Exception as error:
                    failed.append(repr(error))
                took.append(time.monotonic() - start)
                time.sleep(0.1)

    workers = [threading.Thread(target=work, args=(http2,)) for http2 in (False, True)]
    for worker in workers:
        worker.start()
    try:
        yield took
        while len(took) <= 10:
            time.sleep(0.1)
    finally:
        stopping.set()
        for worker in workers:
            worker.join(40)
    assert failed == []
    print(f"{len(took)} requests of the node, the slowest {max(took):.2f} s")


@contextlib.contextmanager
def bounded_memory(running: Running, most: float = 200.0) -> Iterator[None]:
    """Check that the gateway needs at most ``most`` MB more than before."""
    idle, peak, stopping = resident(running.pid), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stopping.wait(0.1):
            peak = max(peak, resident(running.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stopping.set()
        watcher.join()
    print(f"memory: {idle:.0f} MB before, {peak:.0f} MB at most")
    assert peak - idle < most


def until_closed(line: socket.socket, drip: bytes = b"", limit: float = 100.0) -> float:
    """Return the seconds until the gateway closes a connection; send ``drip`` every second."""
    start = time.monotonic()
    line.settimeout(1.0)
    while time.monotonic() - start < limit:
        try:
            if not line.recv(65536):
                break
        except TimeoutError:
            try:
                line.sendall(drip)
            except OSError:
                break
        except OSError:
            break
    line.close()
    return time.monotonic() - start


def in_threads(calls: list[Callable[[], float]]) -> list[float]:
    results: list[float] = []
    threads = [threading.Thread(target=lambda call=call: results.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results)


def test_slow_senders_are_disconnected_in_time(running: Running) -> None:
    """Handshakes, heads and bodies at one byte a second, and connections that say nothing."""
    limits = Limits()

    def handshake() -> float:
        line = running.tcp()
        line.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the start of a ClientHello of 512 bytes
        return until_closed(line, b"\x00")

    def head() -> float:
        line = running.tls()
        line.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nX: ")
        return until_closed(line, b"x")

    def body() -> float:
        line = running.tls()
        line.sendall(running.head(running.node, 1_000_000))
        return until_closed(line, b"x")

    def preface() -> float:
        line = running.tls("h2")
        line.sendall(b"PRI * HTTP/2.0\r\n")
        return until_closed(line)

    def frame() -> float:
        line = running.tls("h2")
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        # The start of a frame of 4 KB with headers for stream 1.
        line.sendall(connection.data_to_send() + b"\x00\x10\x00\x01\x04\x00\x00\x00\x01")
        return until_closed(line, b"\x00")

    cases = {
        handshake: limits.handshake,
        head: limits.request,
        running.tcp: limits.handshake,
        running.tls: limits.request,
        preface: limits.request,
        frame: limits.request,
        body: limits.piece,
    }
    took: dict[str, list[float]] = {}

    def measure(call: Callable[[], object]) -> None:
        value = call()
        seconds = until_closed(value) if isinstance(value, socket.socket) else value
        assert isinstance(seconds, float)
        took[call.__name__] = [seconds]

    with working_node(running), bounded_memory(running):
        threads = [threading.Thread(target=measure, args=(call,)) for call in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(took)
    for call, expected in cases.items():
        (seconds,) = took[call.__name__]
        assert 0.5 * expected < seconds < expected + 5, (call.__name__, seconds)


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_1000_connections_do_not_disturb_a_node(running: Running, protocol: str) -> None:
    """Without a handshake, and with one but without a request."""
    with working_node(running) as took, bounded_memory(running):
        silent = [running.tcp() for _ in range(300)]
        shaken = [running.tls(protocol) for _ in range(700)]
        start = len(took)
        time.sleep(5)
        assert len(took) - start > 20
        for line in (*silent, *shaken):
            line.close()


def test_1500_connections_of_one_address_are_cut_to_1000(running: Running) -> None:
    with working_node(running):
        time.sleep(2)  # the address may open 1,000 at once, and 100 each second
        lines = [running.tcp() for _ in range(1500)]
        time.sleep(1)
        still_open = 0
        for line in lines:
            line.setblocking(False)
            try:
                line.recv(1)
            except BlockingIOError:
                still_open += 1
            except OSError:
                pass
            line.close()
    assert still_open <= 1000


def test_strangers_bodies_are_not_read(running: Running) -> None:
    """Of 150 MB each, on 20 connections at once."""

    def send() -> float:
        sent = 0
        with running.tls() as line, contextlib.suppress(OSError):
            line.sendall(running.head(running.stranger, 60_000_000))
            while sent < 150_000_000:
                line.sendall(b"x" * 1_000_000)
                sent += 1_000_000
        return sent / 1e6

    with working_node(running), bounded_memory(running):
        sent = in_threads([send] * 20)
    print("MB taken from strangers:", sent)
    assert sent[-1] < 20  # what the sockets' buffers take


def test_memory_is_bounded_for_bodies_of_a_registered_key(running: Running) -> None:
    """As with a stolen key: 20 bodies of 60 MB at once, which the SuperLink then refuses."""

    def send() -> float:
        with running.tls() as line, contextlib.suppress(OSError):
            line.sendall(running.head(running.node, 60_000_000))
            for _ in range(60):
                line.sendall(b"x" * 1_000_000)
            line.recv(100)
        return 0.0

    with bounded_memory(running):
        in_threads([send] * 20)
    with running.tls() as line:  # the gateway still answers
        line.sendall(running.head(running.node, 0))
        assert line.recv(100).startswith(b"HTTP/1.1 ")


def h2_flood(
    running: Running, make: Callable[[h2.connection.H2Connection, int], None], rounds: int = 20_000
) -> float:
    """Send HTTP/2 frames until the gateway disconnects; return the seconds until then."""
    start = time.monotonic()
    with running.tls("h2") as line:
        line.settimeout(5)
        connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        connection.initiate_connection()
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            for number in range(rounds):
                make(connection, number)
                line.sendall(connection.data_to_send())
                if number % 10 == 0:
                    line.setblocking(False)
                    with contextlib.suppress(ssl.SSLWantReadError):
                        connection.receive_data(line.recv(1 << 20) or b"not a frame, but the end")
                    line.settimeout(5)
            until_closed(line, limit=20)
    return time.monotonic() - start


def signed(node: Node, path: str = PUSH, **more: str) -> list[tuple[str, str]]:
    pseudo = {":method": "POST", ":path": path, ":scheme": "https", ":authority": "a"}
    return [*(pseudo | node.headers() | more).items()]


def test_http2_floods_are_disconnected(running: Running) -> None:
    """Rapid resets (CVE-2023-44487), pings, settings, priorities and empty data."""
    headers = signed(running.node)

    def reset(connection: h2.connection.H2Connection, number: int) -> None:
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, headers)
        connection.reset_stream(stream)

    def ping(connection: h2.connection.H2Connection, number: int) -> None:
        connection.ping(number.to_bytes(8, "big"))

    def settings(connection: h2.connection.H2Connection, number: int) -> None:
        connection.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 100 + number % 9})

    def empty(connection: h2.connection.H2Connection, number: int) -> None:
        if number == 0:
            connection.send_headers(1, headers)
        connection.send_data(1, b"")

    with working_node(running), bounded_memory(running):
        took = {call.__name__: h2_flood(running, call) for call in (reset, ping, settings, empty)}
    print(took)
    assert max(took.values()) < 20


@pytest.mark.parametrize(
    "values",
    [
        {":path": "/v1/fleet/../control/start-run"},
        {":path": "/v1/control/start-run"},
        {":path": "https://localhost/v1/fleet/push-object"},
        {":path": "/v1/fleet/push-object?x"},
        {":path": ""},
        {":path": "/v1/fleet/push-object HTTP/1.1\r\nX: y"},
        {":method": "GET"},
        {":method": "CONNECT"},
        {"transfer-encoding": "chunked"},
        {"connection": "close"},
        {"content-length": "7"},
        {"content-length": "-1"},
        {"Upper": "case"},
        {"x": "a\r\nhost: b"},
        {"x\r\n": "a"},
        {":status": "200"},
    ],
)
def test_http2_tricks_never_reach_the_superlink(running: Running, values: dict[str, str]) -> None:
    """Each ends with a status of refusal, a reset, or the end of the connection."""
    line = running.tls("h2")
    config = h2.config.H2Configuration(
        header_encoding="utf-8",
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
        validate_inbound_headers=False,
    )
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    pseudo = {":method": "POST", ":path": PUSH, ":scheme": "https", ":authority": "a"}
    headers = [*(pseudo | running.node.headers() | values).items()]
    headers.sort(key=lambda pair: not pair[0].startswith(":"))
    connection.send_headers(1, headers)
    connection.send_data(1, b"", end_stream=True)
    line.sendall(connection.data_to_send())
    statuses, ended = [], False
    line.settimeout(10)
    while not (statuses or ended):
        data = line.recv(65536)
        ended = not data
        for event in connection.receive_data(data) if data else []:
            if isinstance(event, h2.events.ResponseReceived):
                statuses = [value for name, value in event.headers if name == ":status"]
            ended |= isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)
    line.close()
    assert ended or statuses[0] in ("400", "403", "408"), statuses


def test_header_bomb_is_refused(running: Running) -> None:
    """Few bytes that HPACK expands to many."""

    def bomb(connection: h2.connection.H2Connection, number: int) -> None:
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, [*signed(running.node), *[("x", "y" * 4000)] * 15])

    with working_node(running), bounded_memory(running):
        assert h2_flood(running, bomb, rounds=1) < 10


def test_malformed_requests_do_not_disturb_a_node_and_not_fill_the_log(running: Running) -> None:
    before = len(running.lines)

    async def attack() -> None:
        context = ssl.create_default_context(cafile=running.state.ca)

        async def one(number: int) -> None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    *running.address,
                    ssl=context,
                    server_hostname="localhost",
                    local_addr=(ATTACKER, 0),
                )
                writer.write(b"GET /%d\x00\r\n\r\n" % number)
                await asyncio.wait_for(reader.read(), 20)
                writer.close()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(one(start + number) for number in range(50)))

    run: Callable[[Awaitable[None]], None] = lambda task: asyncio.run(task)  # type: ignore[arg-type]  # noqa: E731
    with working_node(running), bounded_memory(running):
        run(attack())
    assert len(running.lines) - before < 400


def test_the_log_has_no_headers(running: Running) -> None:
    text = "\n".join(running.lines)
    assert "Traceback" not in text, text[text.index("Traceback") :][:2000]
    for name in ("flwr-signature", "flwr-public-key", "BEGIN PUBLIC"):
        assert name not in text
    assert Path(f"/proc/{running.pid}").exists()
