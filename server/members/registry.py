"""The state folder of a deployed server, and its registered nodes: nodes.json.

The SuperLink admits nodes by their public keys. ``nodes.json`` holds names and the order of
registration, which determines the nodes' client numbers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedpeft.errors import UserError

NODES = "nodes.json"
STATE = "FEDPEFT_SERVER_STATE"  # `fedpeft server up` names its state folder in it


@dataclass(frozen=True)
class Registered:
    """A registered node.

    Attributes:
        name: given by the operator.
        node_id: Flower's id, 64 bits.
        public_key_sha256: SHA-256 of the key's OpenSSH bytes, as in ``ssh-keygen -l``, in hex.
        added: time of registration, ISO 8601 in UTC.
        public_key: in OpenSSH format; "" if an earlier version registered it.
    """

    name: str
    node_id: int
    public_key_sha256: str
    added: str
    public_key: str = ""


def state_folder() -> Path | None:
    """Return the state folder of the server that started this process; None in a simulation."""
    return Path(os.environ[STATE]) if STATE in os.environ else None


def registered_nodes(state: Path) -> list[Registered]:
    """Return the registered nodes in a server's state folder, in order of registration.

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
