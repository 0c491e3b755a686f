"""``fedpeft node up``: checks what a node needs, then keeps its processes running.

The worker, which holds backbone and data; Flower's SuperNode, which fetches messages and sends
replies; Flower's superexec, which starts a process (:mod:`clients.relay`) for each message.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from clients.channel import check_path, is_listening
from clients.checks import check_all
from clients.outputs import read_supernode
from clients.state import (
    NodeSettings,
    locked,
    log_path,
    prepare,
    runtime_folder,
    secret_file,
    socket_path,
)
from fedpeft.child import Child
from fedpeft.errors import UserError
from fedpeft.ports import LOOPBACK, free_port
from fedpeft.processes import Supervisor
from fedpeft.shims import environment, write_shims

#: Seconds between two looks of superexec for a message; Flower's own default is 1.
_POLL = 0.1
#: Seconds that a SuperNode may take to answer on its own port.
_PATIENCE = 3.0


@dataclass(frozen=True)
class Node:
    """What ``fedpeft node up`` was told."""

    superlink: str  # HOST:PORT
    key: Path  # private key of the node, OpenSSH format
    ca: Path  # certificate of the authority that signed the server's
    state: Path
    settings: NodeSettings
    worker: bool = True


def up(node: Node, as_json: bool) -> None:
    """Check a node and run it until SIGTERM or SIGINT, printing its log.

    Raises:
        UserError: what the node was told cannot work, with a line for each mistake, or a node
            runs in this state folder already.
    """
    from fedpeft.logs import follow, start_log

    os.umask(0o077)  # whatever a process of the node writes is for this user alone
    _check_state(node)
    prepare(node.state)
    with locked(node.state):
        begin = log_path(node.state).stat().st_size
        log = start_log(log_path(node.state), "node")
        stop = threading.Event()
        printing = threading.Thread(
            target=follow, args=(log_path(node.state), stop, as_json, begin), daemon=True
        )
        printing.start()
        try:
            with _stoppable():
                for warning in check_all(node.superlink, node.key, node.ca, node.settings):
                    log.warning("%s", warning)
                _run(node, log)
        except KeyboardInterrupt:
            log.info("the node has ended")
        finally:
            stop.set()
            printing.join()


def _check_state(node: Node) -> None:
    """Raise UserError if a node's state cannot lie where it was told."""
    if any(letter in '"\\' or not letter.isprintable() for letter in str(node.state)):
        raise UserError(f"--state {node.state!s}: quotes and backslashes cannot stand in this path")
    if node.settings.data and node.state.is_relative_to(node.settings.data):
        raise UserError(
            f"--state {node.state}: lies in --data {node.settings.data}, whose files all count as "
            "data, which must not change; choose a folder outside"
        )
    if node.worker:
        check_path(socket_path(node.state))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, so that what was started is ended, too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _run(node: Node, log: logging.Logger) -> None:
    node.settings.write(node.state)
    make_certificate(runtime_folder(node.state))
    write_shims(node.state / "bin", {"flwr-clientapp": "clients.task"})
    supervisor = Supervisor(children(node, free_port()), log)
    supervisor.run(lambda: log.info("the node is up and asks %s for work", node.superlink))
    log.info("the node has ended")


def children(node: Node, port: int) -> list[Child]:
    """Return the processes of a node in the order in which they start.

    Args:
        node: what it was told.
        port: on loopback, where SuperNode and superexec meet.
    """
    around = {
        **environment(node.state),
        "FEDPEFT_NODE_STATE": str(node.state),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(_POLL),
        # Threads that spin while they wait slow down small steps on a busy machine.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    secret, runtime = str(secret_file(node.state)), runtime_folder(node.state)
    certificate, key, ca = (runtime / name for name in ("server.crt", "server.key", "ca.crt"))
    worker = Child(
        "worker",
        [sys.executable, "-P", "-m", "clients.worker", str(node.state)],
        around,
        # A worker that hangs over a message listens, too: who asked goes when nobody waits for
        # the message any more (its time to live), and that ends the worker. One that hangs as a
        # whole, as if it were stopped, is not noticed; its messages then fail after that time.
        lambda: is_listening(socket_path(node.state)),
    )
    supernode = Child(
        "supernode",
        [
            *("flower-supernode", "--superlink", node.superlink),
            *("--root-certificates", str(node.ca)),
            *("--auth-supernode-private-key", str(node.key)),
            *("--isolation", "process", "--superexec-auth-secret-file", secret),
            *("--host", LOOPBACK, "--port", str(port), "--ssl-ca-certfile", str(ca)),
            *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
            *("--node-config", f'state="{node.state}"'),
        ],
        around,
        lambda: _answers(port, ca),
        read=read_supernode,
    )
    superexec = Child(
        "superexec",
        [
            *("flower-superexec", "--runtime-api-address", f"{LOOPBACK}:{port}"),
            *("--root-certificates", str(ca), "--superexec-auth-secret-file", secret),
        ],
        around,
    )
    return [worker, supernode, superexec] if node.worker else [supernode, superexec]


def make_certificate(folder: Path) -> None:
    """Make key and certificate of a node's own port, ``server.key``, ``server.crt``, ``ca.crt``.

    They are good for this start of the node; nobody can sign another with the same authority.
    """
    from fedpeft.keys import CA_KEY, make_authority, make_server

    make_authority(folder, force=True)
    make_server(folder, [], folder, force=True)
    (folder / CA_KEY).unlink()


def _answers(port: int, ca: Path) -> bool:
    """Return whether the node's own SuperNode answers at a port of loopback."""
    try:
        context = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection((LOOPBACK, port), timeout=_PATIENCE) as line,
            context.wrap_socket(line, server_hostname=LOOPBACK),
        ):
            return True
    except OSError:  # ssl.SSLError is one
        return False
