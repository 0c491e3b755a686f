"""Registration of nodes: public keys at the SuperLink, names in nodes.json."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deployment.hosting.keys import check_name
from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import run_flwr
from deployment.server.folder import ServerFolder
from fedpeft.errors import UserError, nearest
from fedpeft.files import PRIVATE, write_together
from fedpeft.locks import locked
from server.members.registry import NODES, Registered, registered_nodes

_PATIENCE = 60.0  # seconds to wait for another command
_LONGEST = 65536  # bytes of a key file that are read
_IN_USE = "Public key already in use"
_GONE = "Node ID not found"


def add_node(state: Path, key: Path, name: str | None = None) -> Registered:
    """Register a node's public key with the running SuperLink and in nodes.json.

    Args:
        state: the server's state folder.
        key: the file of the public key in OpenSSH format.
        name: the node's name; None takes the file's name without its suffix.

    Raises:
        UserError: the key or the name is invalid or already registered, or the SuperLink does not
            answer or refuses.
    """
    name = key.stem if name is None else name
    check_name(name)
    digest = fingerprint(key)
    connection = ServerFolder.read(state).connection()
    with _locked(state):
        nodes = registered_nodes(state)
        for node in nodes:
            if node.public_key_sha256 == digest:
                raise UserError(f"'{key}' is registered already, as node '{node.name}'")
            if node.name == name:
                raise UserError(f"a node '{name}' is registered already; choose another --name")
        answer = _register(key, name, connection)
        added = datetime.now(UTC).isoformat(timespec="seconds")
        node = Registered(name, int(answer["node-id"]), digest, added, public_line(key))
        _write(state, [*nodes, node])
    return node


def remove_node(state: Path, which: str) -> str:
    """Unregister a node at the running SuperLink and drop it from nodes.json; return its name.

    The SuperLink never accepts a removed node's key again: to return, the node needs a new key.

    Args:
        state: the server's state folder.
        which: the node's name, its id at the SuperLink (which may know nodes that nodes.json does
            not), or the file of its public key.

    Raises:
        UserError: the node is unknown, or the SuperLink does not answer or refuses.
    """
    with _locked(state):
        nodes = registered_nodes(state)
        node = _find(nodes, which)
        if node is None and not which.isdecimal():
            known = nearest(which, [node.name for node in nodes]) if nodes else "; there is none"
            raise UserError(f"no node '{which}' is registered{known}")
        number = node.node_id if node else which
        connection = ServerFolder.read(state).connection()
        try:
            run_flwr(["supernode", "unregister", str(number)], connection)
        except UserError as error:
            if _GONE not in str(error):
                raise
            if node is None:
                raise UserError(
                    f"no node has the id {which}; see 'fedpeft server status'"
                ) from None
            # The SuperLink has removed a registered node already, as requested.
        if node is None:
            return which
        _write(state, [other for other in nodes if other != node])
    return node.name


def _find(nodes: list[Registered], which: str) -> Registered | None:
    """Return the registered node with this name, id or key file, if any."""
    for node in nodes:
        if which in (node.name, str(node.node_id)):
            return node
    if not which.endswith(".pub"):
        return None
    digest = fingerprint(Path(which))
    return next((node for node in nodes if node.public_key_sha256 == digest), None)


def fingerprint(key: Path) -> str:
    """Return the SHA-256 of a node's public key in hex; see ``public_line``."""
    return hashlib.sha256(base64.b64decode(public_line(key).split()[1])).hexdigest()


def public_line(key: Path) -> str:
    """Return a node's public key in OpenSSH format, without a comment.

    Raises:
        UserError: the file is not readable, or not an OpenSSH public key on a NIST curve.
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
            f"'{key}' is not a public key; expected the .pub file of 'fedpeft keys node NAME'"
        ) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not public.curve.name.startswith("sec"):
        raise UserError(
            f"'{key}' is not an elliptic-curve key; expected the .pub file of 'fedpeft keys node "
            f"NAME'"
        )
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _register(key: Path, name: str, connection: Connection) -> dict[str, Any]:
    try:
        return run_flwr(["supernode", "register", str(key.resolve()), "--name", name], connection)
    except UserError as error:
        if _IN_USE not in str(error):
            raise
        raise UserError(
            f"the SuperLink knows the key '{key}' already, of a node that was removed or whose "
            f"registration was interrupted; make a new key with 'fedpeft keys node {name} --force'"
        ) from None


def _write(state: Path, nodes: list[Registered]) -> None:
    content = json.dumps([asdict(node) for node in nodes], indent=2) + "\n"
    write_together({state / NODES: (content.encode(), PRIVATE)}, replace=True)


def _locked(state: Path) -> AbstractContextManager[None]:
    """Lock the registry, so that one command at a time changes it."""
    taken = f"another command is changing the nodes of '{state}'; try again when it has ended"
    return locked(state / f".{NODES}.lock", taken, _PATIENCE)
