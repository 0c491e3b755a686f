"""Paths, methods, smuggled requests and TLS versions that the gateway refuses."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

import pytest
from fronts import PUSH, Front
from gateways import status

from fedpeft.hosting.keys import make_authority


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
