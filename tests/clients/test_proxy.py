"""A node reaches the server through a real HTTP proxy (proxy.py), with TLS end to end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tunnels import gateway, tunnel
from workers import PATIENCE, eventually, logged

from clients.checks import check_superlink
from clients.folder import NodeFolder
from clients.proxy import Proxy
from fedpeft.errors import UserError
from fedpeft.hosting.ports import LOOPBACK, free_port

PUSH = "/v1/fleet/push-object"


@contextmanager
def proxy(*options: str) -> Iterator[tuple[int, list[str]]]:
    """Run a proxy; yield its port and the lines of its log as far as they have come at the end."""
    port, lines = free_port(), list[str]()
    command = [sys.executable, "-m", "proxy", "--hostname", LOOPBACK, "--port", str(port)]
    command += ["--num-workers", "1", "--num-acceptors", "1", "--log-level", "i", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        eventually(lambda: answers(port))
        yield port, lines
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE)
        lines += out.splitlines()


def answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def login(tmp_path: Path) -> Path:
    path = tmp_path / "login"
    path.write_text("\ufeffnorth:a secret: with spaces\n")  # as Windows' editors write
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("asks", [False, True], ids=["open", "with a login"])
def test_requests_pass_through_a_proxy(tmp_path: Path, login: Path, asks: bool) -> None:
    options = ["--basic-auth", login.read_text(encoding="utf-8-sig").strip()] if asks else []
    with gateway(tmp_path) as far, proxy(*options) as (port, lines):
        way = Proxy.of(f"http://{LOOPBACK}:{port}", login if asks else None)
        ca = far.keys / "ca.crt"
        assert check_superlink(f"localhost:{far.port}", ca, way) == []
        with (
            tunnel(tmp_path / "state", far.port, ca, proxy=way) as near,
            near.client() as client,
        ):
            body = bytes(300_000)
            assert client.post(PUSH, content=body).content == body
            assert client.post(PUSH, content=b"2").content == b"2"
        assert [each.body for each in far.received] == [body, b"2"]
        assert "secret" not in str(logged(near.state))
    assert any("CONNECT" in line for line in lines), lines


def test_a_proxy_that_wants_a_login_is_named(tmp_path: Path) -> None:
    with gateway(tmp_path) as far, proxy("--basic-auth", "north:other") as (port, _):
        way, ca = Proxy(LOOPBACK, port), far.keys / "ca.crt"
        line = "the proxy refuses: 407 Proxy Authentication Required; it wants --proxy-login"
        (warning,) = check_superlink(f"localhost:{far.port}", ca, way)
        assert line in warning
        with tunnel(tmp_path / "state", far.port, ca, proxy=way) as near:
            eventually(lambda: NodeFolder(near.state).tunnel.exists())
            assert line in NodeFolder(near.state).tunnel.read_text()
        assert not far.received


def test_a_missing_proxy_is_named(tmp_path: Path) -> None:
    with gateway(tmp_path) as far:
        way, ca = Proxy(LOOPBACK, free_port([far.port])), far.keys / "ca.crt"
        (warning,) = check_superlink(f"localhost:{far.port}", ca, way)
        assert "no server answers (Connection refused)" in warning


@pytest.mark.parametrize(
    "url",
    [
        *("host", "host:3128", "https://host:3128", "socks5://host:1080", "http://host"),
        *("http://:3128", "http://host:port", "http://host:99999"),
    ],
)
def test_an_address_that_is_no_proxys_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="expected http://HOST:PORT; user and password come from"):
        Proxy.of(url, None)


def test_a_login_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError) as error:
        Proxy.of("http://me:secret@and-secret@host:3128", None)
    assert "host:3128 with a login" in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("a:b", 0o644, "other users may read it; chmod 600 it"),
        ("ab", 0o600, "expected one line, USER:PASSWORD"),
        ("a:b\nc:d", 0o600, "expected one line, USER:PASSWORD"),
        ("", 0o600, "expected one line, USER:PASSWORD"),
    ],
)
def test_a_file_that_holds_no_login_is_refused(
    login: Path, content: str, mode: int, words: str
) -> None:
    login.write_text(content)
    login.chmod(mode)
    with pytest.raises(UserError, match=words):
        Proxy.of("http://host:3128", login)


def test_a_missing_file_with_a_login_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--proxy-login .*/no: cannot be read \(No such file"):
        Proxy.of("http://host:3128", tmp_path / "no")
