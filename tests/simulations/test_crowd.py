"""A federation costs what takes part in it, not what could."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clients.data import partition_of
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from simulations.grid import NodeConfigs
from simulations.simulation import complete

Quick = Callable[..., Experiment]
CROWD = (
    "task.name=synthetic/crowd",
    "task.train_limit=100000",
    "federation.clients=20000",
    "federation.per_round=3",
    "federation.rounds=2",
)


@pytest.fixture(scope="module")
def crowd(quick: Quick) -> Experiment:
    """A federation of 20,000 clients, of which 6 are ever asked."""
    return quick(*CROWD)


@pytest.fixture(scope="module")
def folder(crowd: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its finished run; read-only."""
    path = tmp_path_factory.mktemp("crowd") / "run"
    complete(crowd, path)
    return path


def test_only_clients_that_are_asked_shake_hands(folder: Path) -> None:
    written = (folder / "bytes.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written]
    shaken = [line["client"] for line in lines if line["kind"] == "handshake"]
    trained = {line["client"] for line in lines if line["kind"] == "train"}
    assert set(shaken) == trained
    assert len(shaken) == len(trained)  # once in a run


def test_nothing_is_written_or_encoded_for_the_others(crowd: Experiment, folder: Path) -> None:
    assert not (folder / "partition.json").exists()
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert written < 100_000
    runtime = runtime_of(crowd)
    assert not runtime.encodes_all
    assert "train" not in vars(runtime)


def test_rows_are_encoded_alone_as_with_the_others(crowd: Experiment) -> None:
    rows = partition_of(runtime_of(crowd))[12_345]
    runtime = runtime_of(crowd)
    many = np.union1d(rows, np.arange(0, 100_000, 50))
    together = runtime.encode(runtime.task.train.select(many)).select(np.searchsorted(many, rows))
    alone = runtime.training(rows)
    for name in ("tokens", "segments", "offsets", "read", "labels"):
        assert np.array_equal(getattr(alone, name), getattr(together, name)), name


def test_all_examples_are_encoded_if_many_clients_are_asked(quick: Quick) -> None:
    assert runtime_of(quick(*CROWD, "federation.per_round=2000")).encodes_all
    assert runtime_of(quick(*CROWD, "task.train_limit=20000")).encodes_all


def test_node_configs_are_those_of_a_list() -> None:
    configs = NodeConfigs(5, {"num-partitions": 5})
    expected = [{"partition-id": client, "num-partitions": 5} for client in range(5)]
    assert list(configs) == expected
    assert configs[1:3] == expected[1:3]
    with pytest.raises(IndexError):
        configs[5]
