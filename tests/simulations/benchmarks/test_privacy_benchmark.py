"""The benchmark of a private step, run tiny: what it compares must be the same, and recorded."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpeft.privacy.example import private_gradients
from fedpeft.runtime import Runtime, runtime_of
from simulations.benchmarks import privacy
from simulations.benchmarks.parts import opacus_step, private_memory, private_steps

OPTIONS = Namespace(backbone="tiny", glue=None)
SMALL = ["--backbone", "tiny", "--batch", "6"]
NAMES = ["private, seeded noise / not private", "private, secure noise / not private"]


def runtime_for(name: str, examples: int = 40) -> Runtime:
    return runtime_of(private_steps.experiment_of(name, examples, OPTIONS).to_toml())


def ragged(runtime: Runtime) -> np.ndarray:
    """Return rows of several lengths, so that some are padded."""
    lengths = runtime.train.lengths
    rows = lengths.argsort()[[0, 1, len(lengths) // 2, -2, -1]]
    assert len(set(lengths[rows])) > 1
    return rows


@pytest.mark.parametrize("name", privacy.TIMED)
def test_opacus_does_the_same_step_but_for_the_noise(name: str) -> None:
    runtime = runtime_for(name)
    rows, start = ragged(runtime), private_steps.start_of(runtime)
    batch = private_steps.batch_of(runtime, rows)
    other = opacus_step.OpacusStep(runtime.model, start[0], len(rows), lr=0.1)
    ours = runtime.model.example_gradients(start, batch)[0]
    torch.testing.assert_close(other.example_gradients(batch), ours, rtol=0, atol=1e-5)
    assert float(ours.abs().amax(0).gt(1e-6).float().mean()) > 0.9  # else nothing is compared
    assert ours.norm(dim=1).max() > 1  # so that clipping is compared, too
    other.optimizer.noise_multiplier = 0.0
    other.step(batch)
    theirs = torch.cat([each.grad.flatten() for each in other.parameters])
    private = private_steps.how(runtime, private_steps.seeded(runtime), 3, len(rows))
    silent = replace(private, mechanism=replace(private.mechanism, noise_multiplier=0.0))
    found = private_gradients(runtime.model, start, [runtime.train], [rows], [silent])[0]
    torch.testing.assert_close(theirs, found, rtol=0, atol=1e-5)
    moved = torch.cat([each.detach().flatten() for each in other.parameters]) - start[0]
    assert moved.abs().max() > 0.05


def test_other_gradients_make_the_comparison_void(monkeypatch: pytest.MonkeyPatch) -> None:
    true = opacus_step.OpacusStep.example_gradients
    monkeypatch.setattr(
        opacus_step.OpacusStep, "example_gradients", lambda self, batch: 1.001 * true(self, batch)
    )
    runtime = runtime_for("slash")
    with pytest.raises(SystemExit, match=r"slash: Opacus's gradients are 0\.001 apart"):
        private_steps.opacus_step(runtime, ragged(runtime))


@pytest.mark.parametrize("kind", ["plain", "private"])
def test_a_step_changes_the_vector(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW's first step moves every number by the learning rate: none is left out."""
    runtime = runtime_for("lora")
    start = private_steps.start_of(runtime)
    vector = start.clone()
    monkeypatch.setattr(private_steps, "start_of", lambda _: vector)
    private = private_steps.how(runtime, private_steps.seeded(runtime), 3, 5)
    step = {
        "plain": lambda: private_steps.plain_step(runtime),
        "private": lambda: private_steps.private_step(runtime, private),
    }[kind]()
    step(ragged(runtime))
    moved = (vector - start).abs()
    assert float(moved.gt(0.9 * runtime.experiment.local.lr).float().mean()) > 0.9


def test_parts_are_the_batches_of_a_private_step(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtime_for("slash", 20)
    lengths = runtime.train.lengths
    parts = private_memory.parts_of(runtime, 6)
    assert all(1 <= len(part) <= 6 for part in parts)
    assert sorted(np.concatenate(parts)) == [*range(20)]
    assert (np.diff(lengths[np.concatenate(parts)]) <= 0).all()


def test_allocated_is_the_most_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            one = torch.ones(1_000_000)
            (one + 1).sum()
            del one

    assert private_memory.allocated(work) == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize("name", private_memory.MEASURED)
def test_a_virtual_batch_needs_at_most_two_vectors_more(name: str) -> None:
    runtime = runtime_for(name)
    virtual, parts = private_memory.torch_peaks(runtime, 6)
    assert len(parts) == 7
    assert 0 <= virtual - max(parts) <= 2 * runtime.model.layout.size * 4 / 1e6


def test_times_are_recorded(tmp_path: Path) -> None:
    options = [*SMALL, "--repeats", "2", "--parts", "time", "--methods", "slash", "linear"]
    (report,) = privacy.main([*options, "--results", str(tmp_path)])
    last = ["Opacus / private, seeded noise", "whole training, private / not private"]
    expected = [f"{name}: {each}" for name in ("slash", "linear") for each in [*NAMES, *last]]
    assert [row["figure"] for row in report.table] == expected
    assert [row["at most"] for row in report.table] == 2 * [
        privacy.TARGET,
        privacy.TARGET,
        "-",
        "-",
    ]
    assert all(0 < row["least"] <= row["ratio"] <= row["largest"] for row in report.table)
    kept = json.loads((tmp_path / "privacy.json").read_text())["time, tiny, synthetic/sentiment"]
    assert kept["table"] == report.table
    assert max(kept["raw"]["apart"].values()) < private_steps.SAME
    assert len(kept["raw"][expected[0]][0]) == 2
    assert f"| {expected[0]} |" in (tmp_path / "privacy.md").read_text()


@pytest.mark.slow
def test_memory_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_memory, "MEASURED", ("houlsby",))
    options = [*SMALL, "--virtual", "20", "--repeats", "1", "--parts", "memory"]
    (report,) = privacy.main([*options, "--results", str(tmp_path)])
    figures = ["torch", "resident", "resident, malloc's default"]
    assert [row["figure"] for row in report.table] == [f"houlsby: {each}" for each in figures]
    assert {row["P"] for row in report.table} == {16_834}
    assert all(100 < row["physical MB"] < 5000 for row in report.table[1:])
    kept = json.loads((tmp_path / "privacy.json").read_text())["memory, tiny, synthetic/sentiment"]
    assert kept["table"] == report.table
    assert kept["settings"]["virtual batch"] == 20


@pytest.mark.slow
def test_a_process_that_fails_says_why() -> None:
    toml = private_steps.experiment_of("slash", 20, OPTIONS).to_toml()
    with pytest.raises(RuntimeError, match="IndexError"):
        private_memory.peak_of_process({}, toml, "6", "4")


def test_help_shows_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        privacy.main(["--help"])
    assert stopped.value.code == 0
    assert "python -m simulations.benchmarks.privacy" in capsys.readouterr().out
