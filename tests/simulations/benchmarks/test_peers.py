"""The benchmark beside other simulators: what they are given, and that all end the same."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpeft.config import Experiment
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.tasks.batching import collate
from simulations.benchmarks import common, peers
from simulations.benchmarks.parts import peer_files
from simulations.benchmarks.parts.peer_model import Classifier, Prepared

OPTIONS = Namespace(clients=3, examples=5, batch=2, rounds=2)
SMALL = ["--backbone", "tiny", "--clients", "2", "--examples", "8", "--rounds", "2"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Runtime, np.ndarray]:
    folder = tmp_path_factory.mktemp("peers")
    peer_files.save_backbone("tiny", folder / "backbone")
    overrides = peers.experiment_of("tiny", folder, OPTIONS)
    start = peer_files.prepare(overrides, folder)
    return Prepared(folder), runtime_of(Experiment.load("", overrides).to_toml()), start


def test_every_epoch_passes_all_examples_in_batches_of_their_own(
    prepared: tuple[Prepared, Runtime, np.ndarray],
) -> None:
    plan = json.loads((prepared[0].folder / "plan.json").read_text())
    for clients in plan:
        assert sorted(i for client in clients for batch in client for i in batch) == [*range(15)]
        assert all(sorted(map(len, client)) == [1, 2, 2] for client in clients)
    assert plan[0] != plan[1]
    first, second = ([sorted(np.concatenate(each)) for each in clients] for clients in plan)
    assert first == second


def test_the_plain_module_has_our_loss_and_gradient(
    prepared: tuple[Prepared, Runtime, np.ndarray],
) -> None:
    data, runtime, start = prepared
    model = Classifier(data)
    np.testing.assert_array_equal(model.vector(), start)
    (batch, *_), (rows, *_) = (
        data.batches(1, 2),
        json.loads((data.folder / "plan.json").read_text())[1][1],
    )
    loss = model.loss(*batch)
    found = torch.autograd.grad(loss, [*model.trained().values()])
    ours = collate([runtime.train], [np.array(rows)], data.settings["pad_id"], "cpu", torch.float32)
    expected, losses = runtime.model.gradients(torch.from_numpy(start)[None], ours)
    torch.testing.assert_close(loss.detach(), losses[0])
    torch.testing.assert_close(torch.cat([each.flatten() for each in found]), expected[0])
    assert expected.abs().max() > 1e-3


@pytest.mark.slow
def test_all_sides_end_the_same_and_are_recorded(
    tmp_path: Path, kept: Callable[..., object]
) -> None:
    pytest.importorskip("ray")
    options = ["--pfl", os.environ.get("PFL_PYTHON", "")]  # an environment that has it
    (report,) = peers.main([*SMALL, *options, "--repeats", "1", "--results", str(tmp_path)])
    kept(report, "peers", "tiny")
    others = ["fedpeft on Ray", "Flower on Ray", *(["pfl"] if options[1] else [])]
    expected = [f"{side}: {kind} s" for side in others for kind in ("wall", "CPU")]
    assert [row["figure"] for row in report.table] == expected
    assert report.facts[common.APART] < common.CLOSE
    assert ("pfl" in report.facts) == (not options[1])


@pytest.mark.slow
def test_a_side_that_trains_something_else_makes_it_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(overrides, folder, options):  # type: ignore[no-untyped-def]
        sides = true(overrides, folder, options)
        other = true([*overrides, "local.steps=1"], folder, options)
        return {peers.OURS: sides[peers.OURS], "shorter": other[peers.OURS]}

    true = peers.sides_of
    monkeypatch.setattr(peers, "sides_of", alone)
    with pytest.raises(SystemExit, match=r"shorter ends .* apart from fedpeft"):
        peers.main([*SMALL, "--batch", "4", "--repeats", "1", "--results", str(tmp_path)])
