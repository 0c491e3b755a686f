"""``fedpeft node up``: checks what a node needs, then keeps its processes running.

The worker, which holds backbone and data; Flower's SuperNode, which fetches messages and sends
replies; Flower's superexec, which starts a process (:mod:`clients.relay`) for each message.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clients.channel import check_path, is_listening
from clients.checks import check_all
from clients.outputs import read_supernode
from clients.state import NodeSettings, locked, log_path, prepare, secret_file, socket_path
from fedpeft.errors import UserError
from fedpeft.processes import Child, Supervisor
from fedpeft.shims import write_shims

#: Seconds between two looks of superexec for a message; Flower's own default is 1.
_POLL = 0.1
_HOST = "127.0.0.1"


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
    if any(letter in '"\\' or not letter.isprintable() for letter in str(node.state)):
        raise UserError(f"--state {node.state!s}: quotes and backslashes cannot stand in this path")
    if node.worker:
        check_path(socket_path(node.state))
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
            for warning in check_all(node.superlink, node.key, node.ca, node.settings):
                log.warning("%s", warning)
            _run(node, log)
        finally:
            stop.set()
            printing.join()


def _run(node: Node, log: logging.Logger) -> None:
    node.settings.write(node.state)
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
    around, secret = environment(node.state), str(secret_file(node.state))
    worker = Child(
        "worker",
        [sys.executable, "-P", "-m", "clients.worker", str(node.state)],
        around,
        lambda: is_listening(socket_path(node.state)),
    )
    supernode = Child(
        "supernode",
        [
            *("flower-supernode", "--superlink", node.superlink),
            *("--root-certificates", str(node.ca)),
            *("--auth-supernode-private-key", str(node.key)),
            *("--isolation", "process", "--superexec-auth-secret-file", secret),
            *("--host", _HOST, "--port", str(port)),
            *("--node-config", f'state="{node.state}"'),
        ],
        around,
        lambda: _answers(port),
        read=read_supernode,
    )
    superexec = Child(
        "superexec",
        [
            *("flower-superexec", "--insecure", "--runtime-api-address", f"{_HOST}:{port}"),
            *("--superexec-auth-secret-file", secret),
        ],
        around,
    )
    return [worker, supernode, superexec] if node.worker else [supernode, superexec]


def environment(state: Path) -> Mapping[str, str]:
    """Return what the node's processes find in their environment, besides what is there."""
    places = [str(state / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        "FEDPEFT_NODE_STATE": str(state),
        "FLWR_HOME": str(state / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(_POLL),
        "FLWR_TELEMETRY_ENABLED": "0",
        # Threads that spin while they wait slow down small steps on a busy machine.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
