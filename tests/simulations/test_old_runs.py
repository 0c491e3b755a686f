"""A run of commit 35e054f, before heads could start from sums, means what it meant then."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpeft.cli.app import main
from fedpeft.experiment.config import Experiment
from fedpeft.runs.vectorfile import read_vector
from fedpeft.runtime import runtime_of
from fedpeft.training import evaluate
from simulations.api import settings_of

ARCHIVE = Path(__file__).with_name("run-35e054f.tar.xz")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Its folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_its_settings_keep_their_digest_and_their_values(old: Path) -> None:
    experiment = Experiment.read(old / "experiment.toml")
    result = json.loads((old / "result.json").read_text())
    assert experiment.digest == result["digests"]["experiment"]
    assert (experiment.head.start, experiment.head.lr, experiment.task.pairs) == (
        *("random", None, "joint"),
    )
    stored = json.loads((old / "identity.json").read_text())
    here = runtime_of(experiment).identity
    names = ("experiment", "projection", "layout", "labels")
    assert {name: here[name] for name in names} == {name: stored[name] for name in names}


def test_its_vector_has_its_score(old: Path) -> None:
    runtime = runtime_of(Experiment.read(old / "experiment.toml"))
    vector, _ = read_vector(old / "vector.safetensors")
    outputs = evaluate(runtime.model, vector, runtime.dev).outputs
    score = json.loads((old / "result.json").read_text())["score"]
    assert np.corrcoef(outputs[:, 0], runtime.dev.labels)[0, 1] == pytest.approx(score, abs=1e-5)


def test_it_continues_to_the_same_vector(
    old: Path, final_vector: Callable[[Path], np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    before = final_vector(old)
    main(["simulate", "--out", str(old), "--resume", "--from-round", "2"])
    assert "round 3/3" in capsys.readouterr().out
    np.testing.assert_allclose(final_vector(old), before, rtol=1e-5, atol=1e-7)
    assert not (old / "start.json").exists()


def test_it_has_a_report(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(old)])
    assert "measuring the frozen backbone" in capsys.readouterr().err
    assert (old / "report.html").exists()


def test_its_file_repeats_it(old: Path, tmp_path: Path) -> None:
    stored = Experiment.read(old / "experiment.toml")
    main(["simulate", str(old / "experiment.toml"), "--out", str(tmp_path / "again")])
    assert Experiment.read(tmp_path / "again" / "experiment.toml").digest == stored.digest
    assert settings_of(old / "experiment.toml").digest == stored.digest
    # Anywhere else it is what a user wrote, who leaves the new settings open.
    file = tmp_path / "own.toml"
    file.write_text((old / "experiment.toml").read_text())
    assert settings_of(file).head.start == "sums"
