"""Nodes that are connected, and the names under which an operator registered them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flwr.serverapp import Grid

from fedpeft.errors import RunFailed
from fedpeft.experiment.federation import FederationSection
from fedpeft.wire.messages import INITIAL_REFERENCE
from server.members.registry import Registered

_INTERVAL = 0.1  # seconds between two checks for nodes


@dataclass(frozen=True)
class Node:
    """A node that takes part in a run.

    Attributes:
        node_id: Flower's.
        examples: number of its training examples.
        name: under which it is registered; empty in a simulation.
        reference: name of the vector that its client holds, see ``server/exchange/downlink.py``.
        start: name of the start that it holds, see ``fedpeft.wire.messages.Request``.
        peer: how it introduces itself to the other clients, for sums under masks.
    """

    node_id: int
    examples: int
    name: str = ""
    reference: bytes = INITIAL_REFERENCE
    peer: bytes = b""
    start: bytes = b""


@runtime_checkable
class Numbered(Protocol):
    """The grid of a simulation, which knows the node of every client if it is ``numbered``."""

    @property
    def numbered(self) -> bool:
        """Whether every client has the node ``node_of``; otherwise nodes tell their clients."""

    def node_of(self, client: int) -> int:
        """Return the id of a client's node."""


@dataclass
class Nodes:
    """Nodes that are connected to the server.

    Attributes:
        grid: Flower's grid.
        registry: returns the registered nodes in order of registration; None in a simulation.
        registered: the registered nodes as last read.
    """

    grid: Grid
    registry: Callable[[], Sequence[Registered]] | None = None
    registered: Sequence[Registered] = ()

    def look(self) -> set[int]:
        """Read the registry again; return the ids of the connected nodes."""
        self.registered = self.registry() if self.registry else ()
        return set(self.grid.get_node_ids())

    @property
    def numbered(self) -> Numbered | None:
        """The grid, if it knows the node of every client; then all of them are connected."""
        grid = self.grid
        return grid if isinstance(grid, Numbered) and grid.numbered else None

    def name(self, node_id: int) -> str:
        """Return the registered name of a node, or ``node ID`` without one."""
        names = (node.name for node in self.registered if node.node_id == node_id)
        return next(names, f"node {node_id}")

    def wait(
        self, federation: FederationSection, report: Callable[[int, Sequence[str]], None]
    ) -> None:
        """Wait until as many nodes are connected as the run has clients.

        Args:
            federation: number of clients, and the longest time to wait.
            report: called in a deployment with the number of connected nodes and the names of
                missing ones whenever they change.

        Raises:
            RunFailed: too few nodes after ``federation.node_wait`` seconds.
        """
        if self.numbered:
            return
        wanted, reported = federation.clients, None
        deadline = time.monotonic() + federation.node_wait
        while len(online := self.look()) < wanted:
            missing = missing_nodes(self.registered, online, wanted)
            if self.registry and (len(online), missing) != reported:
                reported = len(online), missing
                report(*reported)
            if time.monotonic() > deadline:
                names = f"; missing: {', '.join(missing)}" if self.registry else ""
                raise RunFailed(
                    f"only {len(online)} of {wanted} nodes connected within "
                    f"{federation.node_wait:g} s (federation.node_wait){names}"
                )
            time.sleep(_INTERVAL)


def missing_nodes(registered: Sequence[Registered], online: set[int], wanted: int) -> list[str]:
    """Return the names of registered nodes that are away, and how many are not registered yet."""
    away = [node.name for node in registered if node.node_id not in online]
    more = wanted - len(registered)
    return [*away, f"{more} not registered yet (fedpeft server add-node)"] if more > 0 else away
