"""Runs on the Ray engine have the bits of the local engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.engines.ray import running_ray

pytest.importorskip("ray")

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
RAY = "engine.kind=ray"
PRIVATE = ("privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true")
EDEN = ("wire.up=eden1", "wire.down=eden8")
DELTA = ("wire.up=topk0.1", "wire.down=delta1", "federation.fraction=0.5", "federation.rounds=4")
SLOPES = (
    *("local.perturbations=5", "local.steps=2", "wire.up=scalars", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0"),
    *("federation.fraction=0.5", "federation.rounds=4"),
)
VOTES = (
    *("local.perturbations=1", "local.steps=1", "wire.up=signs", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0", "federation.strategy=fedmedian"),
)
PATIENT = ("federation.node_wait=3600", "federation.timeout=3600")  # on a machine of any speed
SUMS = ("federation.secure=true", "secure.colluders=1")
ATTACKED = (
    *("wire.up=float16", "wire.head=eden0.2", "wire.down=bfloat16"),
    *("adversary.fraction=0.4", "adversary.attack=alie_optimal"),
)
UNEVEN = (
    "task.train_limit=120",
    "federation.clients=5",
    "partition.kind=dirichlet",
    "engine.cohort=2",
)

pytestmark = [
    pytest.mark.slow,
    # Ray leaves files of its own to the garbage collector, in this process too.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Run Ray for all tests: its start takes longer than their runs."""
    with running_ray(2):
        yield


@pytest.fixture
def join(started: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs use the Ray that runs."""
    gc.collect()  # which ends the actors of the run before: there are CPUs for two
    monkeypatch.setattr("simulations.engines.ray.running_ray", lambda cpus: nullcontext())


@pytest.mark.usefixtures("join")
@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (1, ("federation.evaluation=clients", *PRIVATE)),
        pytest.param(2, (*EDEN, "nested.d=4"), marks=pytest.mark.long),
        pytest.param(2, (*DELTA, "head.start=sums"), marks=pytest.mark.long),
        pytest.param(1, SLOPES, marks=pytest.mark.long),
        pytest.param(2, VOTES, marks=pytest.mark.long),
        pytest.param(2, SUMS, marks=pytest.mark.long),
        pytest.param(1, ATTACKED, marks=pytest.mark.long),
    ],
)
def test_ray_and_local_engine_end_in_the_same_bits(
    quick: Quick,
    run: Run,
    final_vector: Final,
    workers: int,
    settings: tuple[str, ...],
) -> None:
    made = ("federation.rounds=3", *UNEVEN, *PATIENT, *settings)
    local, _ = run(quick(*made), "local")
    actors, _ = run(quick(*made, RAY, f"engine.workers={workers}"), "ray")
    for line, twin in zip(actors.rounds(), local.rounds(), strict=True):
        for key in ("round", "clients", "failed", "loss", "score", "metrics", "privacy"):
            assert line[key] == twin[key], key
        # How many shares are sent to a client of a sum depends on seeds of the operating system.
        for way in ("up",) if settings == SUMS else ("up", "down"):
            # The bytes of the handshake differ: it carries the settings.
            assert line["bytes"][way] == twin["bytes"][way]
    assert final_vector(actors.path).tobytes() == final_vector(local.path).tobytes()
