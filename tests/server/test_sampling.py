"""The sample of clients in a round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from server.rounds.training import sample

CLIENTS = np.arange(12)


def test_seed_and_round_determine_the_sample() -> None:
    one = sample(CLIENTS, seed=3, number=4, count=5)
    assert sample(CLIENTS, seed=3, number=4, count=5) == one
    assert sample(CLIENTS, seed=3, number=5, count=5) != one
    assert sample(CLIENTS, seed=4, number=4, count=5) != one


def test_sampled_clients_are_different_and_in_order() -> None:
    chosen = sample(CLIENTS, seed=0, number=1, count=7)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 7
    assert {*chosen} <= {*CLIENTS.tolist()}


def test_every_client_is_sampled_equally_often() -> None:
    turns = dict.fromkeys(CLIENTS.tolist(), 0)
    for number in range(1, 401):
        for client in sample(CLIENTS, seed=1, number=number, count=3):
            turns[client] += 1
    # 100 expected, standard deviation sqrt(400 * 1/4 * 3/4) = 8.7
    assert min(turns.values()) > 60
    assert max(turns.values()) < 140


def test_a_sample_has_at_most_all_clients() -> None:
    assert sample(CLIENTS, seed=0, number=1, count=50) == CLIENTS.tolist()


@pytest.mark.parametrize(
    ("settings", "asked"),
    [(("federation.fraction=0.5",), 2), (("federation.per_round=3",), 3), ((), 4)],
)
def test_a_run_asks_the_clients_that_sample_names(
    quick: Callable[..., Experiment],
    federate: Callable[..., RunFolder],
    read_lines: Callable[[Path], list[dict[str, Any]]],
    settings: tuple[str, ...],
    asked: int,
) -> None:
    experiment = quick("federation.clients=4", *settings)
    folder = federate(experiment)
    assert experiment.clients_per_round == asked
    lines = read_lines(folder.path / "bytes.jsonl")
    for line in folder.rounds():
        trained = [
            entry["client"]
            for entry in lines
            if entry["round"] == line["round"] and entry["kind"] == "train"
        ]
        assert trained == sample(np.arange(4), experiment.seed, line["round"], asked)
        assert line["clients"] == asked
