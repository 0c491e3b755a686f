"""Whole runs with clients that hold a prefix of z: bytes, the mean, and chosen clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import final_vector

from clients.data.partitioning import partition
from fedpeft.experiment.config import Experiment
from fedpeft.nested import fixed_numbers, is_small
from fedpeft.randomness import When
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import train_cohort
from fedpeft.wire.codecs import encoded_size
from server.rounds.training import sample

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ReadLines = Callable[[Path], list[dict[str, Any]]]
NESTED = ["nested.d=4", "federation.clients=4"]
ONE_ROUND = [*NESTED, "federation.rounds=1", "engine.dtype=float64", "federation.max_update_norm=0"]
EXACT, CODED = ["wire.up=float64", "wire.down=float64"], ["wire.up=eden8", "wire.down=eden8"]
SIZE, HEAD, Z, PREFIX = 82, 66, 16, 4


@pytest.mark.parametrize(
    ("up", "down"), [("float32", "float32"), ("eden1", "eden8"), ("topk0.5", "float16")]
)
@pytest.mark.parametrize("settings", [[], ["federation.evaluation=clients"]], ids=["", "clients"])
def test_only_the_prefix_and_the_head_travel(
    quick: Quick,
    federate: Federate,
    read_lines: ReadLines,
    up: str,
    down: str,
    settings: list[str],
) -> None:
    experiment = quick(*NESTED, *settings, f"wire.up={up}", f"wire.down={down}")
    lines = read_lines(federate(experiment).path / "bytes.jsonl")
    sent = [line for line in lines if line["kind"] != "handshake"]
    assert len(sent) == (16 if settings else 8)
    for line in sent:
        numbers = HEAD + (PREFIX if is_small(experiment, line["client"]) else Z)
        assert line["down"]["payload"] == encoded_size(numbers, down)
        if line["kind"] == "train":
            assert line["up"]["payload"] == encoded_size(numbers, up)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("codecs", [EXACT, CODED], ids=["exact", "coded"])
def test_each_number_is_the_mean_over_the_clients_that_hold_it(
    quick: Quick, federate: Federate, weighting: str, codecs: list[str]
) -> None:
    """The oracle averages one number at a time; codes of 8 bits lose less than 2 % of a change."""
    uneven = ["partition.kind=quantity", f"federation.weighting={weighting}"]
    experiment = quick(*ONE_ROUND, *codecs, *uneven)
    runtime = runtime_of(experiment)
    start, parts = runtime.parameters.initial(0), partition(runtime.task, experiment)
    vectors, fixed = trained(runtime, parts)
    weights = [len(part) if weighting == "examples" else 1 for part in parts]
    expected = start.copy()
    for place in range(SIZE):
        holders = [k for k in range(4) if not fixed[k, place]]
        assert len(holders) == (2 if PREFIX <= place < Z else 4)
        shares = [weights[k] for k in holders]
        expected[place] = np.average([vectors[k, place] for k in holders], weights=shares)
    change = np.linalg.norm(final_vector(federate(experiment)) - expected)
    assert change <= (0.02 if codecs == CODED else 1e-12) * np.linalg.norm(expected - start)


def trained(runtime: Runtime, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients' vectors after the first round, and which numbers are fixed."""
    clients, experiment = list(range(len(parts))), runtime.experiment
    fixed = fixed_numbers(runtime.parameters, experiment, clients)
    assert fixed is not None
    result = train_cohort(
        runtime.model,
        runtime.parameters.initial(0),
        [runtime.train.select(part) for part in parts],
        clients,
        experiment.local,
        When(0, 1, 1),
        None,
        fixed,
    )
    return result.vectors, fixed


@pytest.mark.parametrize("codecs", [EXACT, CODED], ids=["exact", "coded"])
def test_numbers_that_no_client_of_the_round_holds_stay(
    quick: Quick, federate: Federate, codecs: list[str]
) -> None:
    one = [*ONE_ROUND, *codecs, "nested.share=0.75", "federation.per_round=1"]
    experiment = next(filter(asks_small, (quick(*one, f"seed={seed}") for seed in range(30))))
    start = runtime_of(experiment).parameters.initial(experiment.seed)
    vector = final_vector(federate(experiment))
    np.testing.assert_allclose(vector[PREFIX:Z], start[PREFIX:Z], rtol=1e-12)
    assert (vector[:PREFIX] != start[:PREFIX]).all() and (vector[Z:] != start[Z:]).all()


def asks_small(experiment: Experiment) -> bool:
    (client,) = sample(np.arange(4), experiment.seed, 1, 1)
    return is_small(experiment, client)
