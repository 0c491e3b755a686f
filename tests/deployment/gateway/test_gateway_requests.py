"""Paths, methods, smuggled requests and TLS versions that the gateway refuses."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

import pytest
from fronts import PUSH, Front

from deployment.hosting.keys import make_authority


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
        ("POST", "https://other/v1/control/start-run"),
        ("POST", "https://localhost/v1/fleet/push-object"),
    ],
)
def test_tricks_with_paths_and_methods_are_refused(front: Front, method: str, path: str) -> None:
    assert front.ask(path, front.node.headers(), method=method) == 403
    assert front.seen == []
    assert "is open to the outside" in front.line_with(f"refused 127.0.0.1 {method} {path}: ")


def test_long_and_unprintable_path_is_cut_and_shown_on_one_line(front: Front) -> None:
    assert front.ask("/" + "x" * 2000, length=0) == 403
    line = front.line_with("refused 127.0.0.1 POST /xxx")
    assert len(line) < 300
    assert front.ask("/\xe9\x9b", length=0) in (400, 403)


@pytest.mark.parametrize("protocol", ["http/1.1", ""])
def test_a_client_without_http2_is_refused_with_its_cause(front: Front, protocol: str) -> None:
    """What it says is no HTTP/2, and is not read as anything else."""
    context = ssl.create_default_context(cafile=front.state.ca)
    if protocol:
        context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(front.address, 10) as line,
        context.wrap_socket(line, server_hostname="localhost") as wrapped,
        contextlib.suppress(OSError),
    ):
        wrapped.sendall(f"POST {PUSH} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
        with wrapped.makefile("rb") as answer:
            assert b"HTTP/1.1" not in answer.read()
    front.line_with("refused 127.0.0.1: not a valid HTTP/2 request")
    assert front.seen == []


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n"],
)
def test_malformed_http_is_refused(front: Front, raw: bytes) -> None:
    with front.line() as line:
        line.sendall(raw)
        with line.makefile("rb") as answer:
            answer.read()  # to the end of the connection
    front.line_with("refused 127.0.0.1: not a valid HTTP/2 request")
    assert front.seen == []


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


def test_a_slow_group_for_keys_is_not_offered(front: Front) -> None:
    """A stranger could otherwise choose what a handshake costs the gateway."""
    for group, offered in (("prime256v1", True), ("secp521r1", False)):
        context = ssl.create_default_context(cafile=front.state.ca)
        context.set_ecdh_curve(group)
        with socket.create_connection(front.address, 10) as line:
            try:
                context.wrap_socket(line, server_hostname="localhost").close()
                assert offered
            except (ssl.SSLError, ConnectionError):
                assert not offered


def test_old_tls_is_refused(front: Front) -> None:
    context = ssl.create_default_context(cafile=front.state.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(front.address, 10) as line, pytest.raises(ssl.SSLError):
        context.wrap_socket(line, server_hostname="localhost")
