"""The benchmark of regenerated projections, run tiny: the sides must agree, and it is recorded."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from fedpeft.projection.operators import Dense
from simulations.benchmarks import projections
from simulations.benchmarks.parts import projection_steps

SMALL = ["--backbone", "tiny", "--d", "48", "--groups", "2", "--repeats", "1"]
STEP = ["--batch", "2", "--tokens", "8"]
CPU = torch.device("cpu")


@pytest.mark.slow
def test_both_sides_are_compared_and_recorded(tmp_path: Path) -> None:
    report = projections.main([*SMALL, *STEP, "--results", str(tmp_path)])
    assert report is not None
    assert [row["figure"] for row in report.table] == ["passes, ms", "step, ms", "peak memory, MB"]
    for row in report.table:
        assert [*row] == ["figure", "regenerated", "stored", "ratio", "least", "largest"]
        assert row["regenerated"] > 0 and row["stored"] > 0
        assert 0 < row["least"] <= row["ratio"] <= row["largest"]
    assert report.facts["MB of the stored projections"] == pytest.approx(2 * 32 * 48 * 4 / 1e6)
    kept = json.loads((tmp_path / "projections.json").read_text())
    assert kept["cpu, tiny, d = 48, 2 groups"]["table"] == report.table
    assert len(kept["cpu, tiny, d = 48, 2 groups"]["raw"]["step, ms"][0]) == 1


def test_what_is_regenerated_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    method = projection_steps.method_of("tiny", 48)
    projections.check(method, 2, CPU)
    true = Dense._pieces

    def doubled(self: Dense) -> object:
        scale = 1 if self._kept is not None else 2
        return ((start, scale * piece) for start, piece in true(self))

    monkeypatch.setattr(Dense, "_pieces", doubled)
    with pytest.raises(SystemExit, match="not the stored ones"):
        projections.check(method, 2, CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert projections.main([*SMALL, "--device", "cuda", "--results", str(tmp_path)]) is None
    assert "not measured" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_memory_is_that_of_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    projections.memory_process(["regenerated", "tiny", "48", "1", "cpu"])
    assert json.loads(capsys.readouterr().out) > 10


@pytest.mark.slow
def test_a_process_that_fails_is_heard() -> None:
    options = Namespace(backbone="none", d=48, groups=1, device="cpu")
    with pytest.raises(RuntimeError, match="KeyError: 'none'"):
        projections.peak("stored", options)


@pytest.mark.parametrize("backbone", ["tiny", "minilm"])
def test_random_weights_have_the_backbones_shape(backbone: str) -> None:
    shape = projection_steps.KNOWN_SHAPES[backbone]
    model = projection_steps.random_model(shape, CPU)
    assert sum(each.numel() for each in model.parameters()) == shape.parameters
