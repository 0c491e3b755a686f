"""HTTP/2 floods, tricks and header bombs against a real gateway."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.exceptions
import h2.settings
import pytest
from attacked import Running, attacked, bounded_memory, until_closed, working_node
from gateways import PATIENCE
from handmade import PUSH, Answers, fields

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with attacked(tmp_path_factory.mktemp("attacks")) as made:
        yield made


def h2_flood(
    running: Running, make: Callable[[h2.connection.H2Connection, int], None], rounds: int = 20_000
) -> None:
    """Send HTTP/2 frames until the gateway disconnects; fail if it does not."""
    with running.tls() as line:
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
                    line.settimeout(PATIENCE)
            until_closed(line)


def test_http2_floods_are_disconnected(running: Running) -> None:
    """Rapid resets (CVE-2023-44487), pings, settings, priorities and empty data."""
    headers = fields(PUSH, running.node.headers())

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
        for call in (reset, ping, settings, empty):
            h2_flood(running, call)


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
    answers = Answers(running.tls())
    answers.state.send_headers(1, fields(PUSH, running.node.headers() | values))
    answers.state.send_data(1, b"", end_stream=True)
    answers.send()
    assert answers.until(1) in (0, 400, 403, 408)
    answers.line.close()


def test_header_bomb_is_refused(running: Running) -> None:
    """Few bytes that HPACK expands to many."""

    def bomb(connection: h2.connection.H2Connection, number: int) -> None:
        stream = connection.get_next_available_stream_id()
        connection.send_headers(
            stream, [*fields(PUSH, running.node.headers()), *[("x", "y" * 4000)] * 15]
        )

    with working_node(running), bounded_memory(running):
        h2_flood(running, bomb, rounds=1)


def test_the_log_has_no_headers(running: Running) -> None:
    assert not running.complaints()
