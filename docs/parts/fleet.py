"""Costs of a federation of many real nodes, computed from the benchmark of fifty nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from deployment.gateway.limits import MEGABYTE, Budget, Limits
from parts.markdown import table
from parts.results import BENCHMARKS

#: A machine for servers: cores, GB, and the share of them that may be busy.
CORES, MEMORY, BUSY = 16, 64, 0.5
ROUND = 600.0  # seconds
SHARE = 0.01  # of the nodes that train in a round


@dataclass(frozen=True)
class Cost:
    """Costs of gateway and SuperLink together.

    Attributes:
        waiting: cores for each connected node that waits.
        megabytes: memory for each connected node.
        training: CPU seconds for each node that trains in a round.
    """

    waiting: float
    megabytes: float
    training: float


def measured() -> Cost:
    """Return the costs that ``simulations.benchmarks.fleet`` has measured."""
    cases = json.loads((BENCHMARKS / "fleet.json").read_text(encoding="utf-8"))
    case = cases["50 nodes"]
    nodes, parts = case["settings"]["nodes"], case["table"]
    return Cost(
        sum(float(part["CPU of a core, waiting"].rstrip("%")) / 100 for part in parts) / nodes,
        sum(part["largest MB"] - part["MB before nodes"] for part in parts) / nodes,
        sum(part["CPU ms a client and round"] for part in parts) / 1000,
    )


def machines(nodes: int, cost: Cost) -> float:
    """Return how many machines the waiting and the training of so many nodes keep busy."""
    cores = nodes * (cost.waiting + SHARE * cost.training / ROUND)
    return max(cores / (CORES * BUSY), nodes * cost.megabytes / 1000 / (MEMORY * BUSY))


def real_nodes() -> str:
    """Return cores, memory and machines for up to a million connected nodes."""
    cost, rows = measured(), []
    for nodes in (1000, 10_000, 100_000, 1_000_000):
        rows.append(
            [
                f"{nodes:,}",
                f"{nodes * cost.waiting:,.1f}",
                f"{nodes * SHARE * cost.training / ROUND:,.2f}",
                f"{nodes * cost.megabytes / 1000:,.1f} GB",
                f"{machines(nodes, cost):,.1f}",
            ]
        )
    return table(
        ["connected nodes", "cores, waiting", "cores, 1 % train", "memory", "machines"], rows
    )


def budgets() -> str:
    """Return what strangers, addresses and registered keys may cost at the gateway."""
    limits = Limits()

    def work(budget: Budget) -> str:
        return f"{budget.burst:g} s, then {budget.rate:g} s a second"

    def count(budget: Budget) -> str:
        return f"{budget.burst:,.0f}, then {budget.rate:,.0f} a second"

    wait, refused = "the connection waits", "503"
    rows = [
        ["a connection", "TLS handshake", f"{limits.handshake:g} s", "closed"],
        ["a connection", "time to the next request", f"{limits.request:g} s", "closed"],
        ["a connection of a node", "the same", f"{limits.idle:g} s", "closed"],
        ["a connection", "requests at once", limits.streams, "that request is reset"],
        ["a request", "head, as HPACK counts", f"{limits.head:,} bytes", "closed"],
        ["a body", "speed", f"{limits.slowest:g} bytes a second", "408"],
        ["strangers of an address", "work", work(limits.strange_work), wait],
        ["strangers of an address", "requests", count(limits.strange_requests), refused],
        ["all strangers", "work", work(limits.all_strange_work), wait],
        ["all strangers", "connections", f"{limits.strangers:,}", "the oldest is closed"],
        ["an address", "connections", f"{limits.per_address:,}", "closed"],
        ["an address", "new connections", count(limits.arrivals), "closed"],
        ["an address", "requests", count(limits.requests), refused],
        ["a registered key", "work", work(limits.key_work), wait],
        ["a registered key", "connections", limits.per_key, refused],
        ["a registered key", "requests", count(limits.key_requests), refused],
        ["a registered key", "at the SuperLink at once", limits.upstream, "the request waits"],
        ["all", "connections", f"{limits.connections:,}", "closed"],
        ["all", "bodies that wait", f"{limits.waiting // MEGABYTE} MB", refused],
    ]
    return table(["of", "what", "limit", "beyond it"], rows)


PARTS: dict[str, Callable[..., str]] = {"real_nodes": real_nodes, "budgets": budgets}
