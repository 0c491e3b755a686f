"""Whole runs of zeroth order: exact bytes, the server's vector, votes, hostile slopes, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from messaging import changed
from outcomes import final_vector
from safetensors.numpy import load_file

from fedpeft.batches.encoded import IGNORED
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.optimization.zeroth import directions
from fedpeft.randomness import When
from fedpeft.runs.checkpoints import PREVIOUS, read_checkpoint
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import CohortResult, train_cohort

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ReadLines = Callable[[Path], list[dict[str, Any]]]
ZEROTH = ["local.optimizer=sgd", "local.lr=0.5", "local.perturbations=5"]
SCALARS = [*ZEROTH, "local.steps=2", "wire.up=scalars"]
COMBINED = [*SCALARS, "local.max_grad_norm=0", "wire.down=scalars"]
SIGNS = [
    *("local.optimizer=sgd", "local.lr=0.5", "local.steps=1", "local.perturbations=1"),
    *("wire.up=signs", "federation.strategy=fedmedian"),
]
VOTES = [*SIGNS, "local.max_grad_norm=0", "wire.down=scalars"]


def along(experiment: Experiment, number: int, size: int) -> np.ndarray:
    """Return the directions of a round's only step, float64 [local.perturbations, size]."""
    when = When(experiment.seed, number, experiment.federation.rounds)
    return directions(experiment.local, when, 0, torch.empty(1, size, dtype=torch.float64)).numpy()


def train(runtime: Runtime, folder: RunFolder, vector: np.ndarray, number: int) -> CohortResult:
    """Train each client of a run from the same vector."""
    experiment = runtime.experiment
    clients = json.loads((folder.path / "partition.json").read_text())["clients"]
    results = [
        train_cohort(
            *(runtime.model, vector, [runtime.train.select(np.array(rows))], [client]),
            *(experiment.local, When(experiment.seed, number, experiment.federation.rounds)),
        )
        for client, rows in enumerate(clients)
    ]
    parts = (
        [getattr(r, name)[0] for r in results] for name in ("vectors", "losses", "steps", "slopes")
    )
    return CohortResult(*map(np.stack, parts))


@pytest.mark.parametrize(
    ("settings", "payload"),
    [(SCALARS, 2 * 5 * 4), (SIGNS, 1), ([*SIGNS, "local.perturbations=9"], 2)],
)
def test_payloads_are_slopes(
    quick: Quick, federate: Federate, read_lines: ReadLines, settings: list[str], payload: int
) -> None:
    folder = federate(quick(*settings))
    lines = [line for line in read_lines(folder.path / "bytes.jsonl") if line["kind"] == "train"]
    assert len(lines) == 2 * 3
    assert {line["up"]["payload"] for line in lines} == {payload}
    result = json.loads((folder.path / "result.json").read_text())
    share = result["bytes"]["per_client_round_up"]
    assert share["payload"] == payload == share["head"] + share["method"]


@pytest.mark.parametrize("settings", [[], ["local.optimizer=adamw", "local.weight_decay=0.1"]])
def test_scalars_lead_where_vectors_lead_to_the_bit(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    vectors = [
        final_vector(federate(quick(*SCALARS, *settings, "engine.cohort=1", up), out=up))
        for up in ("wire.up=scalars", "wire.up=float32")
    ]
    start = runtime_of(quick()).parameters.initial(0)
    assert np.abs(vectors[0] - start).max() > 0.01
    assert vectors[0].tobytes() == vectors[1].tobytes()


@pytest.mark.parametrize("clients", [3, 4])
def test_signs_are_a_majority_vote(quick: Quick, federate: Federate, clients: int) -> None:
    """The oracle adds up signs, as FeedSign does: a tie of four clients moves nothing."""
    experiment = quick(
        *SIGNS,
        "engine.dtype=float64",
        "wire.down=float64",
        f"federation.clients={clients}",
        "federation.rounds=12",
        "local.max_grad_norm=0",
        "local.schedule=constant",
    )
    runtime, folder = runtime_of(experiment), federate(experiment)
    vector, votes = runtime.parameters.initial(0), []
    for number in range(1, 13):
        slopes = train(runtime, folder, vector, number).slopes
        votes.append(int(np.sign(slopes).sum()))
        vector = vector - 0.5 * np.sign(votes[-1]) * along(experiment, number, len(vector))[0]
    assert len(set(votes)) > 2 and (0 in votes) == (clients == 4)
    np.testing.assert_allclose(final_vector(folder), vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "size"),
    [(COMBINED, 2 * 5 * 4), (VOTES, 1), ([*VOTES, "local.perturbations=9"], 2)],
)
def test_slopes_down_are_all_that_is_sent(
    quick: Quick, federate: Federate, read_lines: ReadLines, settings: list[str], size: int
) -> None:
    """In the first round nothing, as clients make the initial vector; then a round's slopes."""
    folder = federate(quick(*settings, "federation.rounds=3"))
    lines = [line for line in read_lines(folder.path / "bytes.jsonl") if line["kind"] == "train"]
    assert [line["down"]["payload"] for line in lines] == [0] * 3 + [size] * 6
    server, _ = read_checkpoint(folder.path / PREVIOUS)
    for path in (folder.path / "kept" / "reference").iterdir():
        assert load_file(path)["2/vector"].tobytes() == server.vector.tobytes()


@pytest.mark.parametrize(
    ("strategy", "mean"), [("fedavg", np.mean), ("fedmedian", np.median)], ids=["mean", "median"]
)
def test_slopes_down_lead_along_the_directions(
    quick: Quick, federate: Federate, strategy: str, mean: Callable[..., np.ndarray]
) -> None:
    experiment = quick(
        *COMBINED,
        "engine.dtype=float64",
        "local.steps=1",
        "local.schedule=constant",
        "federation.rounds=3",
        "federation.weighting=uniform",
        f"federation.strategy={strategy}",
    )
    runtime, folder = runtime_of(experiment), federate(experiment)
    vector = runtime.parameters.initial(0)
    for number in (1, 2, 3):
        slopes = mean(train(runtime, folder, vector, number).slopes[:, 0], axis=0)
        moves = [slope * u for slope, u in zip(slopes, along(experiment, number, 82), strict=True)]
        vector = vector - 0.5 * sum(moves) / 5
    assert np.abs(vector - runtime.parameters.initial(0)).max() > 0.01
    np.testing.assert_allclose(final_vector(folder), vector, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [
        ["federation.server_lr=0.5", "local.momentum=0.9"],
        ["local.weight_decay=0.1", "local.proximal_mu=0.2"],
        ["federation.fraction=0.67", "local.steps=3"],
    ],
)
def test_combined_slopes_lead_where_combined_vectors_lead(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    exact = ["engine.dtype=float64", "federation.rounds=3", *settings]
    slopes, vectors = (
        final_vector(federate(quick(*COMBINED, *exact, "task.train_limit=120", down), out=down))
        for down in ("wire.down=scalars", "wire.down=float64")
    )
    np.testing.assert_allclose(slopes, vectors, rtol=0, atol=1e-10)
    assert np.abs(slopes - runtime_of(quick()).parameters.initial(0)).max() > 0.01


def test_a_tie_of_signs_sent_down_counts_as_positive(quick: Quick, federate: Federate) -> None:
    experiment = quick(
        *VOTES,
        "engine.dtype=float64",
        "federation.clients=4",
        "federation.rounds=12",
        "local.schedule=constant",
    )
    runtime, folder = runtime_of(experiment), federate(experiment)
    vector, votes = runtime.parameters.initial(0), []
    for number in range(1, 13):
        votes.append(int(np.sign(train(runtime, folder, vector, number).slopes).sum()))
        sign = 1 if votes[-1] >= 0 else -1
        vector = vector - 0.5 * sign * along(experiment, number, len(vector))[0]
    assert 0 in votes and min(votes) < 0 < max(votes)
    np.testing.assert_allclose(final_vector(folder), vector, rtol=0, atol=1e-12)


def test_slopes_down_beyond_float32_end_the_run(quick: Quick, federate: Federate) -> None:
    """A client alone decides; its vector is finite, and its slopes times server_lr are not."""
    experiment = quick(*COMBINED, "federation.clients=1", "federation.server_lr=100")
    sent = np.full(10, 1e37, "<f4").tobytes()
    with pytest.raises(RunFailed, match="10 of 10 slopes are NaN or infinite in the combined"):
        federate(experiment, lambda reply: changed(reply, v=sent), rounds=[1])


def test_fedavg_moves_by_the_mean_of_the_signs(quick: Quick, federate: Federate) -> None:
    experiment = quick(
        *SIGNS,
        "engine.dtype=float64",
        "wire.down=float64",
        "federation.rounds=1",
        "federation.strategy=fedavg",
        "local.perturbations=30",
        "local.max_grad_norm=0",
    )
    runtime, folder = runtime_of(experiment), federate(experiment)
    start = runtime.parameters.initial(0)
    signs = np.sign(train(runtime, folder, start, 1).slopes[:, 0])
    assert len(set(np.abs(signs.sum(0)))) == 2  # unanimous, or two to one
    moved = -0.5 * signs.mean(0) @ along(experiment, 1, len(start)) / 30
    np.testing.assert_allclose(final_vector(folder) - start, moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sent", "words"),
    [
        (SCALARS, bytes(36), "update has 36 bytes, expected 40 (10 scalars)"),
        (SCALARS, bytes(328), "update has 328 bytes, expected 40"),
        (SCALARS, None, "update has 0 bytes, expected 40"),
        (SCALARS, np.full(10, np.nan, "<f4").tobytes(), "10 of 10 slopes are NaN or infinite"),
        (SCALARS, np.full(10, 3e38, "<f4").tobytes(), "of 82 numbers are NaN or infinite"),
        (
            [*SCALARS, "local.max_grad_norm=0", "federation.max_update_norm=50"],
            np.full(10, 1e6, "<f4").tobytes(),
            "is above federation.max_update_norm = 50",
        ),
        (SIGNS, bytes(2), "update has 2 bytes, expected 1 (1 signs)"),
        (COMBINED, bytes(36), "update has 36 bytes, expected 40 (10 scalars)"),
        (COMBINED, np.full(10, np.inf, "<f4").tobytes(), "10 of 10 slopes are NaN or infinite"),
    ],
    ids=["short", "vector", "missing", "nan", "overflow", "norm", "signs", "down", "down nan"],
)
def test_hostile_slopes_are_refused_by_name_and_the_others_count(
    quick: Quick, federate: Federate, settings: list[str], sent: bytes | None, words: str
) -> None:
    folder = federate(quick(*settings), lambda reply: changed(reply, v=sent), client=1, rounds=[1])
    first, second = folder.rounds()
    assert words in first["failed"][0]["reason"]
    assert (first["clients"], second["clients"]) == (2, 3)


@pytest.mark.parametrize(
    "settings",
    [SCALARS, [*SIGNS, "wire.down=delta1"], COMBINED, VOTES],
    ids=["scalars", "signs", "down", "signs down"],
)
def test_a_resumed_run_ends_in_the_same_bits(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    experiment = quick(*settings, "federation.rounds=3")
    whole = federate(experiment, out="whole")

    def broken(reply: Message) -> Message:
        raise OSError("lost")

    with pytest.raises(RunFailed, match="round 2: 0 of 3"):
        federate(experiment, broken, rounds=[2])
    resumed = federate(experiment, resume=True)
    assert final_vector(whole).tobytes() == final_vector(resumed).tobytes()


def test_central_privacy_clips_replayed_updates(quick: Quick, federate: Federate) -> None:
    clip = 1e-3
    privacy = ["privacy.unit=client", "privacy.noise_multiplier=0", f"privacy.client_clip={clip}"]
    experiment = quick(*SCALARS, *privacy, "federation.rounds=1", "engine.dtype=float64")
    moved = final_vector(federate(experiment)) - runtime_of(experiment).parameters.initial(0)
    assert 0.1 * clip < np.linalg.norm(moved) <= clip * (1 + 1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        [*SCALARS, "local.lr=1", "federation.rounds=40"],
        [*SIGNS, "local.batch_size=20", "federation.rounds=300"],
    ],
    ids=["scalars", "signs"],
)
def test_a_federation_learns_better_than_the_majority(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    """Seen: 0.43 with scalars; the most frequent tag is right for 0.25 of the words."""
    experiment = quick(
        *settings,
        "task.name=synthetic/entities",
        "method={name='linear'}",
        "output.eval_every=1000",
    )
    labels = runtime_of(experiment).dev.labels
    words = labels[labels != IGNORED]
    majority = np.bincount(words).max() / len(words)
    metrics = federate(experiment).rounds()[-1]["metrics"]
    assert metrics["accuracy"] > majority + 0.1
