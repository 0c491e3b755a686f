"""One request and one answer over a Unix socket, between processes of one user on one machine.

Both are a pair of byte strings, each sent as its length (8 bytes, big-endian) and itself. Either
side lets go of a peer that belongs to another user.
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

LARGEST = 2 << 30  # bytes of one of a pair: no protobuf message can be larger
LONGEST_PATH = 107  # bytes of a socket's path, the kernel's limit
Pair = tuple[bytes, bytes]
_PATIENCE = 30.0  # seconds that a peer may take to send a request, or to take its answer
_LENGTH = struct.Struct("!Q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_LISTENS = 0x10000  # flag of a socket in /proc/net/unix
_PIECE = 1 << 20  # bytes


class ChannelError(OSError):
    """The other side is not who it should be, went away, or sent what is no pair."""


def check_path(path: Path) -> None:
    """Make sure that a socket can have this path.

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
    """Return a socket, mode 0600, that listens at ``path``; what a dead process left is removed.

    Raises:
        UserError: the path is too long, or another process listens there.
        OSError: the folder cannot be written.
    """
    check_path(path)
    if is_listening(path):
        raise UserError(f"{path}: another process answers there already")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # the socket is made with the right mode, not given it later
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener


def is_listening(path: Path) -> bool:
    """Return whether a process listens at ``path``.

    Read from /proc: connections that only look would queue up before a worker that is busy.
    """
    if not path.exists():  # removed below a process that still listens
        return False
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        # Address, references, protocol, flags, type, state, inode, path.
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[7] == str(path) and int(words[3], 16) & _LISTENS:
            return True
    return False


def serve_one(
    listener: socket.socket, answer: Callable[[Pair], Pair], gone: Callable[[], None]
) -> None:
    """Wait for one connection, and answer its request.

    A connection that is closed without a request is passed over.

    Args:
        listener: see ``listen``.
        answer: returns the answer to a request.
        gone: called at once, in another thread, if the peer hangs up before ``answer`` returns;
            only it can end an answer that nobody waits for any more.

    Raises:
        ChannelError: the peer is another user, went away, or sent what is no request.
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
        timeout: seconds that the answer may take. A process that dies is noticed at once.

    Raises:
        OSError: nobody listens there, the answer took too long.
        ChannelError: the peer is another user, went away, or sent what is no answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        _check_peer(connection)
        _send(connection, request)
        return _receive(connection)


def _check_peer(connection: socket.socket) -> None:
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(said)
    if user != os.geteuid():
        raise ChannelError(f"process {process} of user {user} is refused: it is not ours")


@contextmanager
def _watched(connection: socket.socket, gone: Callable[[], None]) -> Iterator[None]:
    """Call ``gone`` in a thread if the peer hangs up meanwhile."""
    hang_up = select.poll()
    hang_up.register(connection, select.POLLRDHUP)
    if hang_up.poll(0):
        raise ChannelError("who asked has gone while the request waited")
    ours, theirs = socket.socketpair()

    def watch() -> None:
        hang_up.register(theirs, select.POLLRDHUP)
        if theirs.fileno() not in [file for file, _ in hang_up.poll()]:
            gone()

    watching = threading.Thread(target=watch, daemon=True, name="hang-up")
    watching.start()
    try:
        yield
    finally:
        ours.close()
        watching.join()
        theirs.close()


def _send(connection: socket.socket, pair: Pair) -> None:
    for part in pair:
        _check_length(len(part))
        connection.sendall(_LENGTH.pack(len(part)))
        if part:  # sending nothing fails when the peer, who has all, is gone already
            connection.sendall(part)


def _receive(connection: socket.socket) -> Pair:
    return _receive_part(connection), _receive_part(connection)


def _receive_part(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    _check_length(length)
    return _exactly(connection, length)


def _check_length(length: int) -> None:
    if length > LARGEST:
        raise ChannelError(f"{length} bytes in one piece, at most {LARGEST} are allowed")


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()  # grows with what comes: a length alone takes no memory
    while len(data) < length:
        piece = connection.recv(min(_PIECE, length - len(data)))
        if not piece:
            raise ChannelError("the connection was closed in the middle")
        data += piece
    return bytes(data)
