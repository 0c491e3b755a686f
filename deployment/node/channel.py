"""One request and one answer over a Unix socket, between processes of one user on one machine.

Both are pairs of byte strings. Each string is sent after its length (8 bytes, big-endian). Either
side closes the connection if the peer belongs to another user.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.errors import UserError

LARGEST = 2 << 30  # bytes of one string: protobuf's limit of a message
LONGEST_PATH = 107  # bytes of a socket's path: the kernel's limit
Pair = tuple[bytes, bytes]
_PATIENCE = 30.0  # seconds in which a peer has to send its request, or to read the answer
_LENGTH = struct.Struct("!Q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_LISTENING = 0x10000  # flag of a listening socket in /proc/net/unix
_PIECE = 1 << 20  # bytes


class ChannelError(OSError):
    """The peer belongs to another user, disconnected, or sent an invalid pair."""


def check_path(path: Path) -> None:
    """Check that a socket can have this path.

    Raises:
        UserError: the path is longer than the kernel allows.
    """
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise UserError(
            f"{path}: {length} bytes, but a socket's path has at most {LONGEST_PATH}; "
            "use a state folder with a shorter path"
        )


def listen(path: Path) -> socket.socket:
    """Return a socket of mode 0600 that listens at ``path``; the file of a dead process is removed.

    Raises:
        UserError: the path is too long, or another process listens there.
        OSError: the folder cannot be written.
    """
    check_path(path)
    if is_listening(path):
        raise UserError(f"{path}: another process listens there already")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # no other user may connect at any moment
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener


def is_listening(path: Path) -> bool:
    """Return whether a process listens at ``path``.

    Read from /proc: a connection would wait in the queue of a busy worker.
    """
    if not path.exists():  # the file may be removed while a process still listens
        return False
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        # Address, references, protocol, flags, type, state, inode, path.
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[7] == str(path) and int(words[3], 16) & _LISTENING:
            return True
    return False


def serve_one(
    listener: socket.socket, answer: Callable[[Pair], Pair], gone: Callable[[], None]
) -> None:
    """Wait for one connection, and answer its request.

    A connection that is closed without a request is ignored.

    Args:
        listener: see ``listen``.
        answer: returns the answer to a request.
        gone: called in another thread as soon as the peer disconnects before ``answer`` returns,
            to end a computation that is no longer needed.

    Raises:
        ChannelError: the peer belongs to another user, disconnected, or sent an invalid request.
        OSError: the peer took too long, or the listener is closed.
    """
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_PATIENCE)
        _check_peer(connection)
        first = connection.recv(1, socket.MSG_PEEK)
        if first:
            request = _receive(connection)
            with _watched(connection, gone):
                reply = answer(request)
            _send(connection, reply)


def ask(path: Path, request: Pair, timeout: float) -> Pair:
    """Send a request to the process that listens at ``path`` and return its answer.

    Args:
        path: of the socket.
        request: what to send.
        timeout: seconds that the answer may take; if the process ends, the call fails at once.

    Raises:
        OSError: no process listens there, or the answer took too long.
        ChannelError: the peer belongs to another user, disconnected, or sent an invalid answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        _check_peer(connection)
        _send(connection, request)
        return _receive(connection)


def _check_peer(connection: socket.socket) -> None:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(peer)
    if user != os.geteuid():
        raise ChannelError(f"process {process} of user {user} is refused: expected this user's")


@contextmanager
def _watched(connection: socket.socket, gone: Callable[[], None]) -> Iterator[None]:
    """Call ``gone`` in a thread if the peer disconnects during the block."""
    hang_up = select.poll()
    hang_up.register(connection, select.POLLRDHUP)
    if hang_up.poll(0):
        raise ChannelError("the requester disconnected while the request waited")
    end, ended = socket.socketpair()  # closing the first wakes up the thread

    def watch() -> None:
        hang_up.register(ended, select.POLLRDHUP)
        if ended.fileno() not in [file for file, _ in hang_up.poll()]:
            gone()

    watching = threading.Thread(target=watch, daemon=True, name="hang-up")
    watching.start()
    try:
        yield
    finally:
        end.close()
        watching.join()
        ended.close()


def _send(connection: socket.socket, pair: Pair) -> None:
    for part in pair:
        _check_length(len(part))
        connection.sendall(_LENGTH.pack(len(part)))
        if part:  # an empty send fails if the peer has read everything and disconnected
            connection.sendall(part)


def _receive(connection: socket.socket) -> Pair:
    return _receive_part(connection), _receive_part(connection)


def _receive_part(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    _check_length(length)
    return _exactly(connection, length)


def _check_length(length: int) -> None:
    if length > LARGEST:
        raise ChannelError(f"{length} bytes in one string, expected at most {LARGEST}")


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()  # grows with the received bytes: a false length takes no memory
    while len(data) < length:
        piece = connection.recv(min(_PIECE, length - len(data)))
        if not piece:
            raise ChannelError("the connection was closed within a string")
        data += piece
    return bytes(data)
