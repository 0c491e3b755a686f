"""Ports of the processes of a server or node: free ones, listening, who answers."""

from __future__ import annotations

import secrets
import socket
import ssl
import sys
from collections.abc import Container
from pathlib import Path

LOOPBACK = "127.0.0.1"
#: Below the ports of outgoing connections, which could take a port while the process that listens
#: there is being restarted.
PORTS = range(20000, 32000)
#: Bytes that the kernel takes for a connection whose bytes are not read yet, and that may be on
#: their way, so they bound the speed per round trip. Linux alone lets them grow (here to 33 MB).
_UNREAD = 1 << 18


def free_port(reserved: Container[object] = ()) -> int:
    """Return a random port out of ``PORTS`` that is free on loopback and not reserved."""
    while True:
        port = secrets.choice(PORTS)
        if port in reserved:
            continue
        try:
            check_free(LOOPBACK, port)
            return port
        except OSError:
            continue


def check_free(host: str, port: int) -> None:
    """Check that a process could listen at an IP address and port now.

    Raises:
        OSError: the port is in use, or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens at an IP address; at :: also for IPv4.

    Raises:
        OSError: the port is taken, or this machine does not have the address.
    """
    both = host == "::" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    # Connections inherit both. asyncio sets the second only on sockets made with a protocol;
    # without it, an answer takes 40 ms more.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def speaks_tls(host: str, port: int, ca: Path, name: str) -> bool:
    """Return whether a server with a certificate of the authority ``ca`` for ``name`` answers."""
    try:
        context = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection((host, port), timeout=3) as connection,
            context.wrap_socket(connection, server_hostname=name),
        ):
            return True
    except OSError:  # ssl.SSLError is one
        return False


def user_at(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Return the user whose process holds the other end of a TCP connection within this machine.

    Args:
        peer: IPv4 address and port of that end.
        here: those of this end.

    Returns:
        Its number, or None if that end is closed or on another machine.
    """
    ends = [_in_kernels_form(*peer), _in_kernels_form(*here)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        # Number, this end, other end, state, queues, timer, retransmits, user.
        words = line.split(maxsplit=8)
        if words[1:3] == ends:
            return int(words[7])
    return None


def _in_kernels_form(host: str, port: int) -> str:
    address = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{address:08X}:{port:04X}"
