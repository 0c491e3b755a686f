"""``fedpeft server add-node`` and ``remove-node``: register nodes by their public keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.cli.options import ServerState


def add_node(
    key: Annotated[Path, typer.Argument(metavar="NAME.pub", help="The node's public key.")],
    state: ServerState,
    name: Annotated[
        str | None, typer.Option(help="Name of the node; default: the name of the key file.")
    ] = None,
) -> None:
    """Register a node's public key with the running server, so that it may take part.

    In a run, nodes get their client numbers in the order of registration. Prints the node's name
    and its key's fingerprint, to compare with the one that the site sees.

    Example: fedpeft server add-node hospital-a.pub --state /var/lib/fedpeft
    """
    from fedpeft.hosting.keys import fingerprint
    from server.host import registration

    node = registration.add_node(state, key, name)
    print(f"node '{node.name}' may take part; its key: {fingerprint(node.public_key)}")


def remove_node(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="Name of the node, its id in 'server status', or NAME.pub."
        ),
    ],
    state: ServerState,
) -> None:
    """Remove a node for good: it needs a new key to take part again.

    Prints the node's name.

    Example: fedpeft server remove-node hospital-a --state /var/lib/fedpeft
    """
    from server.host import registration

    name = registration.remove_node(state, node)
    print(f"node '{name}' may no longer take part")
