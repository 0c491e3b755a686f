"""Waiting for the nodes of a run, and saying meanwhile who is there and who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flwr.serverapp import Grid

from fedpeft.errors import RunFailed
from fedpeft.settings import FederationSection
from server.registry import Registered

_LOOK = 0.1  # seconds between looks for nodes


def wait_for_nodes(
    grid: Grid,
    federation: FederationSection,
    registry: Callable[[], Sequence[Registered]] | None,
    report: Callable[[int, Sequence[str]], None],
) -> None:
    """Wait until as many nodes are connected as the run has clients.

    Args:
        grid: Flower's grid.
        federation: how many, and how long.
        registry: tells who is registered; None in a simulation, where nodes have no names.
        report: called with (nodes connected, names of the missing) whenever that has changed.

    Raises:
        RunFailed: fewer after ``federation.node_wait`` seconds; it names the missing.
    """
    wanted, told = federation.clients, None
    deadline = time.monotonic() + federation.node_wait
    while True:
        online = set(grid.get_node_ids())
        if len(online) >= wanted:
            return
        found = len(online), missing_nodes(registry() if registry else (), online, wanted)
        if registry and found != told:
            report(*found)
            told = found
        if time.monotonic() > deadline:
            missing = f"; missing: {', '.join(found[1])}" if registry else ""
            raise RunFailed(
                f"only {len(online)} of {wanted} nodes connected within "
                f"{federation.node_wait:g} s (federation.node_wait){missing}"
            )
        time.sleep(_LOOK)


def missing_nodes(registered: Sequence[Registered], online: set[int], wanted: int) -> list[str]:
    """Return the names of registered nodes that are away, and how many are not registered yet."""
    away = [node.name for node in registered if node.node_id not in online]
    more = wanted - len(registered)
    return [*away, f"{more} not registered yet (fedpeft server add-node)"] if more > 0 else away
