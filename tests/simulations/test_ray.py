"""Flower's simulation in many processes gives the bits of the local engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.config import Experiment
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
PRIVATE = ("privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true")
PARTIAL = ("federation.clients=5", "federation.fraction=0.5", "partition.kind=dirichlet")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (1, ()),
        (2, ()),
        (1, (*PARTIAL, "federation.strategy=fedadam")),
        (2, (*PARTIAL, "federation.evaluation=clients")),
        (2, PRIVATE),
    ],
)
def test_ray_equals_local_to_the_bit(
    quick: Quick,
    run: Callable[..., tuple[RunFolder, dict[str, Any]]],
    start_cli: Callable[..., Any],
    final_vector: Callable[[Path], np.ndarray],
    tmp_path: Path,
    workers: int,
    settings: tuple[str, ...],
) -> None:
    pytest.importorskip("ray")
    settings = ("engine.cohort=1", *settings)
    local, result = run(quick("federation.rounds=3", *settings), "local")
    ray = ("engine.kind=ray", f"engine.workers={workers}")
    out = tmp_path / "ray"
    process = start_cli(quick("federation.rounds=3", *settings, *ray), out)
    assert process.wait(300) == 0, out.with_suffix(".txt").read_text()
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()
    for line, twin in zip(RunFolder(out).rounds(), local.rounds(), strict=True):
        for key in ("round", "clients", "failed", "loss", "score", "metrics", "privacy"):
            assert line[key] == twin[key], key
        for side in ("up", "down"):
            assert line["bytes"][side]["payload"] == twin["bytes"][side]["payload"]
            difference = line["bytes"][side]["message"] - twin["bytes"][side]["message"]
            # Only ids differ: message ids of 36 characters and not 64, longer node numbers.
            assert abs(difference) <= 60 * twin["clients"]
    assert result["bytes"]["up"]["payload"] > 0
