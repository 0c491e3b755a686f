"""The channel between relay and worker: real sockets, and faulty peers."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from workers import other_user

from deployment.node import channel
from deployment.node.channel import (
    ChannelError,
    Pair,
    ask,
    check_path,
    is_listening,
    listen,
    serve_one,
)
from fedpeft.errors import UserError

PATIENCE = 120.0  # seconds, on a machine of any speed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@contextmanager
def serving(path: Path, requests: int = 1) -> Iterator[list[BaseException | None]]:
    """Answer some requests by swapping their parts; yield the error of each, or None.

    Every call of ``gone`` adds an InterruptedError.
    """
    ends: list[BaseException | None] = []
    listener = listen(path)

    def swap(request: Pair) -> Pair:
        return request[1], request[0]

    def work() -> None:
        for _ in range(requests):
            try:
                serve_one(listener, swap, lambda: ends.append(InterruptedError()))
                ends.append(None)
            except OSError as error:
                ends.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield ends
    thread.join(PATIENCE)
    listener.close()
    assert not thread.is_alive(), "fewer requests came"


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    return connection


def let_go(connection: socket.socket) -> bool:
    """Return whether the peer closed the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it did not read all that was sent
        return True


def test_a_request_is_answered(path: Path) -> None:
    large = os.urandom(3_000_000)  # more than a socket holds at once
    with serving(path, 3) as ends:
        assert ask(path, (b"message", b"context"), PATIENCE) == (b"context", b"message")
        assert ask(path, (large, b""), PATIENCE) == (b"", large)
        assert ask(path, (b"", b""), PATIENCE) == (b"", b"")
    assert ends == [None, None, None]


def test_the_socket_is_for_its_user_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        with listen(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0, "listening changed how other files are made"
    finally:
        os.umask(before)


def test_the_socket_of_a_dead_process_is_replaced_but_not_of_a_living_one(path: Path) -> None:
    listen(path).close()
    assert path.exists() and not is_listening(path)
    with serving(path, 0):
        assert is_listening(path)
        with pytest.raises(UserError, match="another process listens there already"):
            listen(path)


def test_is_listening_does_not_connect(path: Path) -> None:
    with listen(path) as listener:
        listener.setblocking(False)
        assert is_listening(path)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody has knocked
        path.rename(path.with_suffix(".moved"))
        assert not is_listening(path)
    with serving(path, 2) as ends:
        connected(path).close()
        assert ask(path, (b"a", b"b"), PATIENCE) == (b"b", b"a")
    assert ends == [None, None]


def request(path: Path) -> socket.socket:
    """Send a request; return the connection, to wait for the answer or to close it."""
    connection = connected(path)
    connection.sendall(struct.pack("!Q", 1) + b"a" + struct.pack("!Q", 0))
    return connection


def test_a_peer_that_disconnects_before_the_answer_is_noticed(path: Path) -> None:
    asked, gone = threading.Event(), threading.Event()

    def answer(request: Pair) -> Pair:
        asked.set()
        assert gone.wait(PATIENCE)
        return request

    def serve() -> None:
        with contextlib.suppress(OSError):  # there is nobody to send it to
            serve_one(listener, answer, gone.set)

    with listen(path) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        connection = request(path)
        assert asked.wait(PATIENCE) and not gone.wait(0.3)
        connection.close()
        assert gone.wait(PATIENCE)
        serving.join(PATIENCE)


def test_a_request_whose_peer_disconnected_is_not_answered(path: Path) -> None:
    with listen(path) as listener:
        request(path).close()
        with pytest.raises(ChannelError, match="disconnected while the request waited"):
            serve_one(listener, pytest.fail, pytest.fail)


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0",
        struct.pack("!Q", 10) + b"short",
        struct.pack("!Q", 3) + b"one",
        struct.pack("!Q", channel.LARGEST + 1),
        b"\xff" * 100,
    ],
    ids=["half a length", "half a part", "one part", "too long", "no length"],
)
def test_an_invalid_request_is_dropped(path: Path, sent: bytes) -> None:
    with serving(path, 2) as ends:
        with connected(path) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert let_go(connection)
        assert ask(path, (b"a", b"b"), PATIENCE) == (b"b", b"a")  # the next is served
    assert isinstance(ends[0], ChannelError) and ends[1] is None


def test_a_length_alone_takes_no_memory(path: Path) -> None:
    with serving(path) as ends, connected(path) as connection:
        connection.sendall(struct.pack("!Q", channel.LARGEST))
        connection.shutdown(socket.SHUT_WR)
        assert let_go(connection)
    assert "closed within a string" in str(ends[0])


def test_a_peer_that_stalls_does_not_hold_the_others_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_PATIENCE", 0.2)
    with serving(path, 2) as ends, connected(path):
        assert ask(path, (b"a", b"b"), PATIENCE) == (b"b", b"a")
    assert isinstance(ends[0], TimeoutError)


def test_ask_raises_system_errors_if_the_peer_is_missing_or_leaves(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(path, (b"", b""), 1)
    listener = listen(path)
    ended = threading.Thread(target=lambda: listener.accept()[0].close())
    ended.start()
    with pytest.raises(OSError):
        ask(path, (b"a" * 1_000_000, b""), 5)
    ended.join()
    with pytest.raises(TimeoutError):
        ask(path, (b"a", b""), 0.1)  # it listens and does not answer
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        ask(path, (b"", b""), 1)


def test_a_peer_of_another_user_is_refused() -> None:
    user = other_user()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o755)
        path = Path(folder) / "s.sock"
        with serving(path) as ends:
            path.chmod(0o666)
            child = os.fork()
            if not child:  # pragma: no cover - another process
                try:
                    os.setuid(user)
                    with connected(path) as connection:
                        os._exit(0 if let_go(connection) else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
    assert f"user {user} is refused" in str(ends[0])


def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / "worker.sock"
    with pytest.raises(UserError, match=r"a socket's path has at most 107; use a state folder"):
        check_path(path)
    with pytest.raises(UserError, match="at most 107"):
        listen(path)
    check_path(Path("/" + "d" * 106))
