"""HTTP/2 floods, tricks and header bombs against a real gateway."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator

import pytest
from attacked import Running, attacked, bounded_memory, working_node
from gateways import processor
from handmade import END, PUSH, Answers, connection, data, fields, head

from deployment.gateway.limits import Limits

pytestmark = pytest.mark.long
_NODES = 0.25  # of a core: what the two working nodes may cost


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with attacked(tmp_path_factory.mktemp("attacks")) as made:
        yield made


def flood(running: Running, first: bytes, frames: bytes, seconds: float = 8.0) -> float:
    """Send frames all the time; return the processor time that the gateway used beyond its share.

    Its share is the budget of a stranger or a key, and what the working nodes cost.
    """
    limits = Limits()
    most = max(limits.strange_work, limits.key_work, key=lambda budget: budget.rate)
    begun, before = time.monotonic(), processor(running.pid)
    with running.tls() as line, contextlib.suppress(OSError):
        line.settimeout(1.0)
        line.sendall(first)
        while time.monotonic() - begun < seconds:
            with contextlib.suppress(TimeoutError):
                line.sendall(frames)
            with contextlib.suppress(TimeoutError, ssl.SSLWantReadError):
                line.setblocking(False)
                line.recv(1 << 20)
            line.settimeout(1.0)
    took = time.monotonic() - begun
    return processor(running.pid) - before - most.burst - most.rate * took - _NODES * took


def test_http2_floods_cost_no_more_than_their_budget(running: Running) -> None:
    """Rapid resets (CVE-2023-44487), pings, settings and empty data; nodes work on."""
    state = connection()
    start = state.data_to_send()
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
    settings = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x01\x00\x00\x10\x00"
    resets = bytearray()
    for _ in range(3000):
        stream = state.get_next_available_stream_id()
        state.send_headers(stream, fields(PUSH, running.bad.headers()))
        state.reset_stream(stream)
        resets += state.data_to_send()
    signed = head(PUSH, running.bad.headers(), 10)
    floods = {
        "ping": (start, ping * 5000),
        "settings": (start, settings * 5000),
        "empty data": (signed, b"\x00\x00\x00\x00\x00\x00\x00\x00\x01" * 5000),
        "resets": (start, bytes(resets)),
    }
    with working_node(running), bounded_memory(running):
        beyond = {name: flood(running, *frames) for name, frames in floods.items()}
    print("seconds of the processor beyond the share:", beyond)
    assert max(beyond.values()) < 0.5


def test_a_stream_too_many_is_refused_alone(running: Running) -> None:
    """The others go on."""
    streams = Limits().streams
    answers = Answers(running.tls())
    for _ in range(streams + 1):
        stream = answers.state.get_next_available_stream_id()
        headers = fields(PUSH, running.node.headers() | {"content-length": "1"})
        answers.state.send_headers(stream, headers)
    answers.send()
    assert answers.until(2 * streams + 1) == 0
    assert answers.resets == {2 * streams + 1: 7}  # REFUSED_STREAM
    answers.line.sendall(data(b"x") + END)
    assert answers.until(1) and not answers.ended
    answers.line.close()


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
    bomb = [*fields(PUSH, running.node.headers()), *[("x", "y" * 4000)] * 15]
    with running.tls() as line:
        answers = Answers(line)
        answers.state.send_headers(1, bomb)
        answers.send()
        assert answers.until(1) == 0 and answers.ended


def test_the_log_has_no_headers(running: Running) -> None:
    assert not running.complaints()
