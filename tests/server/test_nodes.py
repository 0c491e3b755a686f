"""Waiting for nodes reports who is connected and who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.federation import FederationSection
from server.members.nodes import Nodes, missing_nodes
from server.members.registry import Registered

NORTH, SOUTH = (Registered(name, number, "", "") for number, name in enumerate(("north", "south")))


class Arriving:
    """A grid whose nodes arrive one after the other."""

    def __init__(self, *online: Sequence[int]):
        self.online = [*online]

    def get_node_ids(self) -> Sequence[int]:
        return self.online.pop(0) if len(self.online) > 1 else self.online[0]


def federation(wait: float = 120) -> FederationSection:
    settings = ["federation.clients=2", f"federation.node_wait={wait}"]
    return Experiment.load("", settings).federation


def wait(
    *online: Sequence[int], registry: Any = lambda: [NORTH, SOUTH], seconds: float = 120
) -> list[tuple[int, Sequence[str]]]:
    """Wait for two nodes while ``online`` are connected; return what was reported."""
    reports: list[tuple[int, Sequence[str]]] = []
    grid: Any = Arriving(*online)
    nodes = Nodes(grid, registry)
    nodes.wait(federation(seconds), lambda connected, names: reports.append((connected, names)))
    assert grid.online == [online[-1]]
    return reports


def test_each_change_of_connected_nodes_is_reported_once() -> None:
    both = ["north", "south"]
    reports = wait([], [], [0], [0], [], [0, 1])
    assert reports == [(0, both), (1, ["south"]), (0, both)]


def test_missing_nodes_are_named_when_the_time_is_over() -> None:
    with pytest.raises(
        RunFailed, match=r"^only 1 of 2 nodes connected within 0\.2 s .*; missing: no"
    ):
        wait([1], seconds=0.2)
    with pytest.raises(
        RunFailed, match=r"missing: 1 not registered yet \(fedpeft server add-node\)$"
    ):
        wait([1], registry=lambda: [SOUTH], seconds=0.2)


def test_a_node_registered_while_waiting_is_reported_by_its_name() -> None:
    registered = [[SOUTH], [NORTH, SOUTH], [NORTH, SOUTH]]
    reports = wait([1], [1], [0, 1], registry=lambda: registered.pop(0))
    assert [names for _, names in reports] == [
        ["1 not registered yet (fedpeft server add-node)"],
        ["north"],
    ]


def test_simulated_nodes_are_not_reported() -> None:
    assert wait([], [0], [0, 1], registry=None) == []
    with pytest.raises(RunFailed, match=r"only 1 of 2 nodes connected .*\(federation.node_wait\)$"):
        wait([0], registry=None, seconds=0.2)


def test_with_enough_registered_nodes_only_absent_ones_are_missing() -> None:
    assert missing_nodes([NORTH, SOUTH], {1}, 1) == ["north"]
    assert missing_nodes([], set(), 0) == []
