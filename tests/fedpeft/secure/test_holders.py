"""Random holders: all derive the same, and all subsets are equally likely."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from fedpeft.secure.holders import holders, points

DRAW = np.random.default_rng(0)
CLIENTS = [3, 5, 8, 13, 21, 34, 55]


def test_a_client_finds_the_points_that_its_owners_chose() -> None:
    seeds = {client: DRAW.bytes(16) for client in CLIENTS[1:]}  # a member may be missing
    for count in (2, 4, 7):
        chosen = {owner: holders(seed, CLIENTS, owner, count) for owner, seed in seeds.items()}
        for owner, row in chosen.items():
            assert len({*row}) == count and row[-1] == owner
        for holder in CLIENTS:
            expected = {o: row.index(holder) + 1 for o, row in chosen.items() if holder in row}
            assert points(seeds, CLIENTS, holder, count) == expected


def test_equal_numbers_are_ordered_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both functions agree if all numbers are zero, which 32 bits make rare."""
    module = importlib.import_module("fedpeft.secure.holders")
    zeros = lambda seeds, clients: np.zeros((len(seeds) // 16, clients), np.uint32)  # noqa: E731
    monkeypatch.setattr(module, "_numbers", zeros)
    assert holders(bytes(16), CLIENTS, 8, 4) == [3, 5, 13, 8]
    for holder, point in ((3, 1), (5, 2), (13, 3), (8, 4)):
        assert points({8: bytes(16)}, CLIENTS, holder, 4) == {8: point}
    assert points({8: bytes(16)}, CLIENTS, 21, 4) == {}


def test_all_others_are_chosen_equally_often_at_each_point() -> None:
    """Chi squared of 6 others at 3 points over 3,000 seeds."""
    counts = np.zeros((3, 7))
    for _ in range(3000):
        for point, holder in enumerate(holders(DRAW.bytes(16), CLIENTS, 8, 4)[:3]):
            counts[point, CLIENTS.index(holder)] += 1
    assert not counts[:, 2].any()
    others = np.delete(counts, 2, axis=1)
    assert (((others - 500) ** 2 / 500).sum(axis=1) < 27).all()  # 5 degrees: p = 6e-5


def test_another_seed_chooses_others() -> None:
    chosen = {tuple(holders(DRAW.bytes(16), [*range(1000)], 0, 50)) for _ in range(20)}
    assert len(chosen) == 20
