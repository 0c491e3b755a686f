"""Slow senders, many connections and large bodies do not disturb a registered node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from attacked import Running, attacked, bounded_memory, in_threads, until_closed, working_node
from gateways import PATIENCE, until
from handmade import PUSH, connection, data, head

from deployment.gateway.limits import Limits

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with attacked(tmp_path_factory.mktemp("attacks")) as made:
        yield made


def test_slow_senders_are_disconnected_in_time(running: Running) -> None:
    """Handshakes, heads and bodies at one byte a second, and connections that say nothing.

    After a slow body its connection stays for other requests of the node: the response is 408.
    """
    limits = Limits()
    preface = connection().data_to_send()
    frame = b"\x00\x10\x00\x01\x04\x00\x00\x00\x01"  # its start: 4 KB of headers of stream 1
    body = head(PUSH, running.node.headers(), 1_000_000)
    # Name: how to connect, what comes at once, what comes each second, the limit.
    cases: dict[str, tuple[Callable[[], socket.socket], bytes, bytes, float]] = {
        # The start of a ClientHello of 512 bytes.
        "handshake": (running.tcp, b"\x16\x03\x01\x02\x00\x01\x00", b"\x00", limits.handshake),
        "tcp": (running.tcp, b"", b"", limits.handshake),
        "tls": (running.tls, b"", b"", limits.request),
        "preface": (running.tls, b"PRI * HTTP/2.0\r\n", b"", limits.request),
        "head": (running.tls, preface + frame, b"\x00", limits.request),
        "body": (running.tls, body, data(b"x"), limits.piece),
    }
    took: dict[str, float] = {}

    def send(name: str) -> None:
        connect, first, more, _ = cases[name]
        start = time.monotonic()
        line = connect()
        line.sendall(first)
        until_closed(line, more, answered=name == "body")
        took[name] = time.monotonic() - start

    with working_node(running), bounded_memory(running):
        threads = [threading.Thread(target=send, args=(name,)) for name in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(took)
    assert took.keys() == cases.keys()  # each was closed
    for name, (*_, expected) in cases.items():
        assert took[name] >= expected, took  # nobody who is only slow is cut off


def test_1000_connections_do_not_disturb_a_node(running: Running) -> None:
    """Without a handshake, and with one but without a request."""
    with working_node(running) as took, bounded_memory(running):
        silent = [running.tcp() for _ in range(300)]
        shaken = [running.tls() for _ in range(700)]
        start = len(took)
        until(lambda: len(took) - start > 20)
        for line in (*silent, *shaken):
            line.close()


def test_1500_connections_of_one_address_are_cut_to_1000(running: Running) -> None:
    with working_node(running):
        lines = [running.tcp() for _ in range(1500)]
        # A later connection is answered after the gateway has looked at all of them.
        assert running.ask(PUSH, running.node.headers())
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
            line.sendall(head(PUSH, running.stranger.headers(), 60_000_000))
            while sent < 150_000_000:
                line.sendall(data(b"x" * 1_000_000))
                sent += 1_000_000
        return sent / 1e6

    with working_node(running), bounded_memory(running):
        sent = in_threads([send] * 20)
    print("MB taken from strangers:", sent)
    assert sent[-1] < 20  # what the sockets' buffers take


def test_memory_is_bounded_for_bodies_of_a_registered_key(running: Running) -> None:
    """As with a stolen key: 20 bodies of 60 MB at once, which the SuperLink then refuses."""

    def send() -> float:
        headers = running.node.headers() | {"content-length": "60000000"}
        pieces = (b"x" * 50_000 for _ in range(1200))  # httpcore copies the rest for each frame
        with running.http() as client, contextlib.suppress(httpx.HTTPError):
            client.post(PUSH, content=pieces, headers=headers)
        return 0.0

    with bounded_memory(running):
        in_threads([send] * 20)
    assert running.ask(PUSH, running.node.headers())  # the gateway still answers


def test_malformed_requests_do_not_disturb_a_node_and_not_fill_the_log(running: Running) -> None:
    before = len(running.lines)

    async def attack() -> None:
        context = ssl.create_default_context(cafile=running.state.ca)
        context.set_alpn_protocols(["h2"])

        async def one(number: int) -> None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    *running.address,
                    ssl=context,
                    server_hostname="localhost",
                    local_addr=(running.attacker, 0),
                )
                writer.write(head(f"/{number}\x00", {}, method="GET"))
                writer.write(b"GET /%d\r\n\r\n" % number)  # no frame
                await asyncio.wait_for(reader.read(), PATIENCE)
                writer.close()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(one(start + number) for number in range(50)))

    run: Callable[[Awaitable[None]], None] = lambda task: asyncio.run(task)  # type: ignore[arg-type]  # noqa: E731
    with working_node(running), bounded_memory(running):
        run(attack())
    assert len(running.lines) - before < 400


def test_the_log_has_no_headers(running: Running) -> None:
    assert not running.complaints()
