"""Waiting for nodes says who is there and who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from fedpeft.settings import FederationSection
from server.registry import Registered
from server.waiting import missing_nodes, wait_for_nodes

NORTH, SOUTH = (Registered(name, number, "", "") for number, name in enumerate(("north", "south")))


class Coming:
    """A grid whose nodes come one after the other."""

    def __init__(self, *online: Sequence[int]):
        self.online = [*online]

    def get_node_ids(self) -> Sequence[int]:
        return self.online.pop(0) if len(self.online) > 1 else self.online[0]


def federation(wait: float = 20) -> FederationSection:
    settings = ["federation.clients=2", f"federation.node_wait={wait}"]
    return Experiment.load("", settings).federation


def test_every_change_is_told_once() -> None:
    told: list[Any] = []
    grid: Any = Coming([], [], [0], [0], [], [0, 1])
    wait_for_nodes(grid, federation(), lambda: [NORTH, SOUTH], lambda *found: told.append(found))
    both = ["north", "south"]
    assert told == [(0, both), (1, ["south"]), (0, both)]


def test_who_is_missing_is_named_in_the_end() -> None:
    grid: Any = Coming([1])
    with pytest.raises(
        RunFailed, match=r"^only 1 of 2 nodes connected within 0\.2 s .*; missing: no"
    ):
        wait_for_nodes(grid, federation(0.2), lambda: [NORTH, SOUTH], lambda *_: None)
    with pytest.raises(
        RunFailed, match=r"missing: 1 not registered yet \(fedpeft server add-node\)$"
    ):
        wait_for_nodes(grid, federation(0.2), lambda: [SOUTH], lambda *_: None)


def test_a_node_that_is_registered_meanwhile_is_waited_for_by_its_name() -> None:
    registered, told = [[SOUTH], [NORTH, SOUTH]], []
    grid: Any = Coming([1], [1], [0, 1])
    wait_for_nodes(
        grid, federation(), lambda: registered.pop(0), lambda done, names: told.append(names[0])
    )
    assert told == ["1 not registered yet (fedpeft server add-node)", "north"]


def test_simulated_nodes_have_no_names() -> None:
    grid: Any = Coming([], [0], [0, 1])
    told: list[Any] = []
    wait_for_nodes(grid, federation(), None, lambda *found: told.append(found))
    assert told == []
    assert grid.online == [[0, 1]]  # it waited for both
    lonely: Any = Coming([0])
    with pytest.raises(RunFailed, match=r"only 1 of 2 nodes connected .*\(federation.node_wait\)$"):
        wait_for_nodes(lonely, federation(0.2), None, lambda *_: None)


def test_more_nodes_than_clients_are_none_too_few() -> None:
    assert missing_nodes([NORTH, SOUTH], {1}, 1) == ["north"]
    assert missing_nodes([], set(), 0) == []
