"""The nodes that may take part: their public keys at the SuperLink, and nodes.json.

The SuperLink lets in whose key it knows; ``nodes.json`` keeps the names and the order of
registration, which gives the nodes their client numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError, nearest
from fedpeft.files import PRIVATE, write_together
from fedpeft.locks import locked
from server.remote.connection import Connection
from server.remote.flwr_cli import run_flwr

NODES = "nodes.json"
_PATIENCE = 60.0  # seconds that another command has to end
_LONGEST = 65536  # bytes that are read of a file that may be a key
_IN_USE = "Public key already in use"
_GONE = "Node ID not found"


@dataclass(frozen=True)
class Registered:
    """A node of the registry.

    Attributes:
        name: what the operator calls it.
        node_id: Flower's number of it, 64 bits.
        public_key_sha256: of the key's OpenSSH bytes, as ``ssh-keygen -l`` takes it, in hex.
        added: when, ISO 8601 in UTC.
    """

    name: str
    node_id: int
    public_key_sha256: str
    added: str


def registered_nodes(state: Path) -> list[Registered]:
    """Return the nodes of a server's state folder, in order of registration.

    Raises:
        UserError: nodes.json is damaged.
    """
    path = state / NODES
    if not path.exists():
        return []
    try:
        return [Registered(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):
        raise UserError(f"'{path}' is damaged; restore it, or begin with another --state") from None


def add_node(state: Path, key: Path, name: str | None = None) -> Registered:
    """Register a node's public key with the running SuperLink and in nodes.json.

    Args:
        state: the server's state folder.
        key: file of the public key, in OpenSSH form.
        name: of the node; the file's name without its ending if None.

    Raises:
        UserError: no such key, no such name for a node, one of them taken, or the SuperLink does
            not answer or refuses.
    """
    from fedpeft.keys import check_name

    name = key.stem if name is None else name
    check_name(name)
    digest = fingerprint(key)
    connection = _connection(state)
    with _locked(state):
        nodes = registered_nodes(state)
        for node in nodes:
            if node.public_key_sha256 == digest:
                raise UserError(f"'{key}' is registered already, as node '{node.name}'")
            if node.name == name:
                raise UserError(f"a node '{name}' is registered already; choose another --name")
        answer = _register(key, name, connection)
        added = datetime.now(UTC).isoformat(timespec="seconds")
        node = Registered(name, int(answer["node-id"]), digest, added)
        _write(state, [*nodes, node])
    return node


def remove_node(state: Path, which: str) -> str:
    """Unregister a node at the running SuperLink and drop it from nodes.json; return its name.

    The SuperLink never takes a removed node's key again: to come back it needs a new one.

    Args:
        state: the server's state folder.
        which: the node's name, its id at the SuperLink (which may know one that nodes.json does
            not), or the file of its public key.

    Raises:
        UserError: no such node, or the SuperLink does not answer or refuses.
    """
    with _locked(state):
        nodes = registered_nodes(state)
        found = _find(nodes, which)
        if found is None and not which.isdecimal():
            known = nearest(which, [node.name for node in nodes]) if nodes else "; there is none"
            raise UserError(f"no node '{which}' is registered{known}")
        number = found.node_id if found else which
        try:
            run_flwr(["supernode", "unregister", str(number)], _connection(state))
        except UserError as error:
            if _GONE not in str(error):
                raise
            if found is None:
                raise UserError(
                    f"no node has the id {which}; see 'fedpeft server status'"
                ) from None
            # One that is gone is what was asked for.
        if found is None:
            return which
        _write(state, [node for node in nodes if node != found])
    return found.name


def _find(nodes: list[Registered], which: str) -> Registered | None:
    """Return the node that a name, a number or the file of a key stands for."""
    for node in nodes:
        if which in (node.name, str(node.node_id)):
            return node
    if not which.endswith(".pub"):
        return None
    digest = fingerprint(Path(which))
    return next((node for node in nodes if node.public_key_sha256 == digest), None)


def fingerprint(key: Path) -> str:
    """Return the SHA-256 of a node's public key, in hex.

    Raises:
        UserError: not readable, a private key, no OpenSSH public key, or not on a NIST curve.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )

    try:
        with open(key, "rb") as file:
            data = file.read(_LONGEST)
    except OSError as error:
        raise UserError(f"'{key}' cannot be read ({error.strerror})") from None
    if b"PRIVATE KEY" in data:
        raise UserError(
            f"'{key}' is a private key, which must stay at its node; expected the public one, "
            f"'{key.with_name(key.name + '.pub')}'"
        )
    try:
        public = load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"'{key}' is no public key; expected the .pub file of 'fedpeft keys node NAME'"
        ) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not public.curve.name.startswith("sec"):
        raise UserError(
            f"'{key}' is no elliptic-curve key; expected the .pub file of 'fedpeft keys node NAME'"
        )
    blob = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    return hashlib.sha256(base64.b64decode(blob)).hexdigest()


def _connection(state: Path) -> Connection:
    from server.host.state import ServerState  # whose keys need cryptography, which readers do not

    return ServerState.read(state).connection()


def _register(key: Path, name: str, connection: Connection) -> dict[str, Any]:
    try:
        return run_flwr(["supernode", "register", str(key.resolve()), "--name", name], connection)
    except UserError as error:
        if _IN_USE not in str(error):
            raise
        raise UserError(
            f"the SuperLink has seen the key '{key}' before, of a node that was removed or not "
            f"added to the end; make a new one with 'fedpeft keys node {name} --force'"
        ) from None


def _write(state: Path, nodes: list[Registered]) -> None:
    content = json.dumps([asdict(node) for node in nodes], indent=2) + "\n"
    write_together({state / NODES: (content.encode(), PRIVATE)}, replace=True)


def _locked(state: Path) -> AbstractContextManager[None]:
    """Let one command at a time change the registry."""
    taken = f"another command is changing the nodes of '{state}'; try again when it has ended"
    return locked(state / f".{NODES}.lock", taken, _PATIENCE)
