"""The benchmark of torch.compile, with a back end that generates no code: no compiler is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpeft.model import TaskModel
from simulations.benchmarks import compiled

OPTIONS = ["--backbone", "tiny", "--batch", "2", "--tokens", "6", "8", "--threads", "1"]
OPTIONS += ["--repeats", "2", "--backend", "eager"]

# Torch warns of what it does itself while it traces: it calls deprecated parts of its own.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_both_sides_are_timed_for_each_length(tmp_path: Path, kept: Callable[..., object]) -> None:
    [report] = compiled.main([*OPTIONS, "--results", str(tmp_path)])
    kept(report, "compiled", "tiny, cpu")
    assert [row["figure"] for row in report.table] == ["2 x 6 tokens", "2 x 8 tokens"]
    assert report.facts["start-up s"] > 0


def test_other_gradients_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compiled.gradients_of

    def wrong(model: TaskModel, backend: str | None) -> compiled.Gradient:
        gradient = plain(model, None)
        return (lambda batch: -gradient(batch)) if backend else gradient

    monkeypatch.setattr(compiled, "gradients_of", wrong)
    with pytest.raises(SystemExit, match="2 apart: not the same"):
        compiled.main([*OPTIONS, "--results", str(tmp_path)])
