"""Ports for a server's or a node's own processes."""

from __future__ import annotations

import secrets
import socket

LOOPBACK = "127.0.0.1"
#: Below the ports that the system gives to outgoing connections, which could take ours while the
#: process that listens there is being restarted.
PORTS = range(20000, 32000)


def free_port() -> int:
    """Return a port of loopback, out of ``PORTS``, that nobody uses now."""
    while True:
        port = secrets.choice(PORTS)
        try:
            check_free(LOOPBACK, port)
            return port
        except OSError:
            continue


def check_free(host: str, port: int) -> None:
    """Make sure that one could listen at an IP address and port now.

    Raises:
        OSError: somebody else does, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
