"""Runs on the Ray engine have the bits of the local engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from server.runfolder import RunFolder

pytest.importorskip("ray")

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
RAY = ("engine.kind=ray", "engine.workers=2")
PRIVATE = ("privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true")
EDEN = ("wire.up=eden1", "wire.down=eden8")
DELTA = ("wire.up=topk0.1", "wire.down=delta1", "federation.fraction=0.5", "federation.rounds=4")
ZEROTH = ("local.perturbations=5", "local.steps=2", "wire.up=scalars")
SLOPES = (
    *(*ZEROTH, "wire.down=scalars", "local.optimizer=sgd", "local.max_grad_norm=0"),
    *("federation.fraction=0.5", "federation.rounds=4"),
)
VOTES = (
    *("local.perturbations=1", "local.steps=1", "wire.up=signs", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0", "federation.strategy=fedmedian"),
)
SUMS = ("federation.secure=true", "secure.colluders=1")
UNEVEN = ("federation.clients=5", "partition.kind=dirichlet", "engine.cohort=2")

pytestmark = [
    pytest.mark.slow,
    # Ray leaves files of its own to the garbage collector, in this process too.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize(
    "settings",
    [
        (*UNEVEN, *EDEN, "nested.d=4"),
        (*UNEVEN, *DELTA),
        (*UNEVEN, *ZEROTH),
        (*UNEVEN, *SLOPES),
        (*UNEVEN, *VOTES),
        (*UNEVEN, *SUMS),
        (*UNEVEN, "wire.up=float16", "wire.head=eden0.2", "wire.down=bfloat16"),
        (*UNEVEN, "adversary.fraction=0.4", "adversary.attack=alie_optimal"),
        (*UNEVEN, "federation.evaluation=clients", *PRIVATE),
    ],
)
def test_ray_and_local_engine_end_in_the_same_bits(
    quick: Quick,
    run: Run,
    final_vector: Final,
    settings: tuple[str, ...],
) -> None:
    local, _ = run(quick("federation.rounds=3", *settings), "local")
    actors, _ = run(quick("federation.rounds=3", *settings, *RAY), "ray")
    for line, twin in zip(actors.rounds(), local.rounds(), strict=True):
        for key in ("round", "clients", "failed", "loss", "score", "metrics", "privacy"):
            assert line[key] == twin[key], key
        # How many shares are sent to a client of a sum depends on seeds of the operating system.
        for way in ("up",) if settings[-len(SUMS) :] == SUMS else ("up", "down"):
            # The bytes of the handshake differ: it carries the settings.
            assert line["bytes"][way] == twin["bytes"][way]
    assert final_vector(actors.path).tobytes() == final_vector(local.path).tobytes()
