"""Costs of a federation of many real nodes, computed from the benchmark of fifty nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

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


PARTS: dict[str, Callable[..., str]] = {"real_nodes": real_nodes}
