"""``fedpeft node up``: check a node's options, then keep its processes running.

The processes are the worker, which holds backbone and data; the tunnel, which holds the connection
to the server; Flower's SuperNode, which fetches messages and sends replies; and Flower's superexec,
which starts a process (:mod:`clients.relay`) for each message.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from clients.asking import note, silence
from clients.channel import check_path, is_listening
from clients.checks import check_all, split_address
from clients.folder import NodeFolder, NodeSettings
from clients.proxy import Proxy
from fedpeft.errors import UserError
from fedpeft.hosting.child import Child
from fedpeft.hosting.ports import LOOPBACK, free_port, speaks_tls
from fedpeft.hosting.processes import Supervisor
from fedpeft.hosting.shims import environment, write_shims
from fedpeft.hosting.timing import Timing

#: Seconds between two polls of superexec for a message; Flower's default is 1. At 0.1 an idle node
#: took 7 % of a core.
_POLL = 0.25
_REPEAT = 60.0  # seconds between two lines about a key that the server does not know


@dataclass(frozen=True)
class Node:
    """The options of ``fedpeft node up``."""

    superlink: str  # HOST:PORT
    key: Path  # private key of the node, OpenSSH format
    ca: Path  # certificate of the authority that signed the server's
    state: Path
    settings: NodeSettings
    worker: bool = True
    wait: bool = False  # while the server does not know the key
    proxy: Proxy | None = None

    @property
    def folder(self) -> NodeFolder:
        """The files in the state folder."""
        return NodeFolder(self.state)


def up(node: Node, as_json: bool) -> None:
    """Check a node and run it until SIGTERM or SIGINT, printing its log.

    Raises:
        UserError: an option is wrong (one line for each mistake), or another node runs in this
            state folder.
    """
    from fedpeft.hosting.logs import printed_log

    _check_state(node)
    os.umask(0o077)  # the files of the node's processes are for this user alone
    node.folder.prepare()
    with node.folder.locked(), printed_log(node.folder.log, "node", as_json) as log:
        try:
            with _stoppable():
                for warning in check_all(
                    node.superlink, node.key, node.ca, node.settings, node.proxy
                ):
                    log.warning("%s", warning)
                _run(node, log)
        except KeyboardInterrupt:
            pass
        log.info("the node has ended")


def _check_state(node: Node) -> None:
    """Raise UserError if the path of the node's state folder is not allowed."""
    if any(letter in '"\\' or not letter.isprintable() for letter in str(node.state)):
        raise UserError(
            f"--state {node.state!s}: contains a quote, backslash or control character; choose a "
            "folder without"
        )
    if node.settings.data and node.state.is_relative_to(node.settings.data):
        raise UserError(
            f"--state {node.state}: lies in --data {node.settings.data}, whose files all count as "
            "data, which must not change; choose a folder outside"
        )
    if node.worker:
        check_path(node.folder.socket)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM as at Ctrl-C, so that it also ends running checks."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(node: Node, log: logging.Logger) -> None:
    node.settings.write(node.state)
    make_certificate(node.folder.runtime)
    write_shims(node.state / "bin", {"flwr-clientapp": "clients.process"})
    for file in (node.folder.tunnel, node.folder.unknown_key):
        file.unlink(missing_ok=True)
    note(node.folder)  # its SuperNode is silent from now on
    port, timing = free_port(), Timing.read(node.state)
    useful = Useful(node, timing, log)
    processes = children(node, port, free_port([port]), useful)
    supervisor = Supervisor(processes, log, timing, node.folder.processes)
    supervisor.run(lambda: log.info("the node is up and asks %s for work", node.superlink))


class Useful:
    """The check whether a node does what it is for, whatever keeps it from that.

    Args:
        node: its options.
        timing: how long its SuperNode may be silent.
        log: gets a line each minute while the server does not know the node's key.
    """

    def __init__(self, node: Node, timing: Timing, log: logging.Logger):
        self.patience = timing.silent
        self._node, self._log, self._said = node, log, float("-inf")

    def __call__(self) -> bool:
        """Return whether the SuperNode asks for work, or the node computes a reply.

        Raises:
            UserError: the server does not know the node's key, and the node does not wait for that.
        """
        folder = self._node.folder
        if folder.unknown_key.exists():
            self._say_unknown()
        return silence(folder) <= self.patience

    def _say_unknown(self) -> None:
        where, key = self._node.superlink, self._node.key
        line = f"the server at {where} does not know the key '{key}' ({_fingerprint(key)})"
        if not self._node.wait:
            raise UserError(
                f"{line}; its operator runs 'fedpeft server add-node' with '{key}.pub'; start this "
                f"node after that, or with --wait"
            )
        if time.monotonic() - self._said > _REPEAT:
            self._said = time.monotonic()
            self._log.warning("%s yet: waiting (--wait)", line)


def _fingerprint(key: Path) -> str:
    """Return the fingerprint of a private key's public part, as ssh-keygen -l shows it."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    from fedpeft.hosting.keys import fingerprint
    from fedpeft.secure.keys import public_line

    private = load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)  # for mypy: it was checked at the start
    return fingerprint(public_line(private).decode())


def children(node: Node, port: int, tunnel_port: int, useful: Useful) -> list[Child]:
    """Return the processes of a node in the order in which they start.

    Args:
        node: its options.
        port: of the SuperNode on loopback, for superexec.
        tunnel_port: of the tunnel on loopback, for the SuperNode.
        useful: the check of Flower's processes together.
    """
    variables = {
        **environment(node.state),
        "FEDPEFT_NODE_STATE": str(node.state),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(_POLL),
        # Threads that spin while they wait would slow down small steps on a busy machine.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    ca = node.folder.runtime / "ca.crt"
    tunnel = Child(
        "tunnel",
        _tunnel(node, tunnel_port),
        variables,
        lambda: speaks_tls(LOOPBACK, tunnel_port, ca, LOOPBACK),
    )
    supernode = Child(
        "supernode",
        _supernode(node, port, tunnel_port),
        variables,
        # First: a SuperNode whose key is unknown ends before it listens.
        lambda: useful() and speaks_tls(LOOPBACK, port, ca, LOOPBACK),
        useful.patience,
    )
    superexec = Child(
        "superexec",
        [
            *("flower-superexec", "--runtime-api-address", f"{LOOPBACK}:{port}"),
            *("--root-certificates", str(ca)),
            *("--superexec-auth-secret-file", str(node.folder.secret())),
        ],
        variables,
        useful,
        useful.patience,
    )
    flower = [tunnel, supernode, superexec]
    if not node.worker:
        return flower
    # A worker that hangs still listens; it ends when the relay disconnects, after the message's
    # time to live. A worker stopped by a signal also listens, and its messages fail.
    listens = partial(is_listening, node.folder.socket)
    return [Child("worker", _module("clients.worker", node.state), variables, listens), *flower]


def _module(name: str, *arguments: object) -> list[str]:
    """Return a command that runs a module and imports nothing from the working directory."""
    return [sys.executable, "-P", "-m", name, *map(str, arguments)]


def _tunnel(node: Node, tunnel_port: int) -> list[str]:
    host, gateway = split_address(node.superlink)
    through = node.proxy.words() if node.proxy else []
    return _module("clients.tunnel", node.state, tunnel_port, host, gateway, node.ca, *through)


def _supernode(node: Node, port: int, tunnel_port: int) -> list[str]:
    runtime = node.folder.runtime
    certificate, key, ca = (str(runtime / name) for name in ("server.crt", "server.key", "ca.crt"))
    return [
        *("flower-supernode", "--superlink", f"{LOOPBACK}:{tunnel_port}"),
        *("--root-certificates", ca, "--auth-supernode-private-key", str(node.key)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(node.folder.secret())),
        *("--host", LOOPBACK, "--port", str(port), "--ssl-ca-certfile", ca),
        *("--ssl-certfile", certificate, "--ssl-keyfile", key),
        *("--node-config", f'state="{node.state}"'),
    ]


def make_certificate(folder: Path) -> None:
    """Make ``server.key``, ``server.crt`` and ``ca.crt`` for the node's ports on loopback.

    They are used until the node ends. The authority's key is removed so that it cannot sign others.
    """
    from fedpeft.hosting.keys import CA_KEY, make_authority, make_server

    make_authority(folder, force=True)
    make_server(folder, [], folder, force=True)
    (folder / CA_KEY).unlink()
