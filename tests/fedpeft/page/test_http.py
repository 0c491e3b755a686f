"""Shared parts of HTTP endpoints: hosts, tokens, and ports in use."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from fedpeft.errors import UserError
from fedpeft.page.hosts import is_loopback
from fedpeft.page.http import bears, listener


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:80", True),
        ("127.0.0.1:9", True),
        ("[::1]:9", True),
        ("", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("192.0.2.1:80", False),
        ("[::1", False),
    ],
)
def test_hosts_on_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [("Bearer secret", True), ("Bearer secret ", False), ("secret", False), ("bearer é", False)],
)
def test_tokens(header: str, expected: bool) -> None:
    assert bears(Headers({"authorization": header}), "secret") is expected
    assert not bears(Headers({}), "secret")


def test_a_port_in_use_is_a_users_error() -> None:
    with listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} \(Address already in use\); choose"):
            listener("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=240):
            pass
