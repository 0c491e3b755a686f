"""``fedpeft server add-node`` and ``remove-node``: whose keys the server lets in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.cli.server.options import State


def add_node(
    key: Annotated[Path, typer.Argument(metavar="NAME.pub", help="The node's public key.")],
    state: State,
    name: Annotated[
        str | None, typer.Option(help="What to call the node; default: the key file's name.")
    ] = None,
) -> None:
    """Let a node in: register its public key with the running server.

    The order of registration gives the nodes of a run their client numbers.

    Example: fedpeft server add-node hospital-a.pub --state /var/lib/fedpeft
    """
    from server import registry

    node = registry.add_node(state, key, name)
    print(f"node '{node.name}' may take part; its key's SHA-256: {node.public_key_sha256}")


def remove_node(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="Its name, its id as 'server status' shows it, or NAME.pub."
        ),
    ],
    state: State,
) -> None:
    """Shut a node out, for good: to come back it needs a new key.

    Example: fedpeft server remove-node hospital-a --state /var/lib/fedpeft
    """
    from server import registry

    name = registry.remove_node(state, node)
    print(f"node '{name}' may no longer take part")
