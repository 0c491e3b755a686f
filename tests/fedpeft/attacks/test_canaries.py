"""The canary audit on the real training code: right training passes, broken training does not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from fedpeft.attacks.canaries import Planted, attacker_start, gradients_at, plant, scores, train
from fedpeft.attacks.one_run import lower_bound, right_guesses
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, calibrate
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.noise import SeededNoise
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import outputs_of

EPSILON, DELTA, CLIP, RATE, ROUNDS = 1.0, 1e-5, 1.0, 0.5, 8
EXAMPLES, CANARIES, GUESSES = 240, 160, 80


@lru_cache
def world(seed: int) -> tuple[Runtime, Planted]:
    overrides = [
        "backbone=tiny",
        f"task.train_limit={EXAMPLES}",
        "task.eval_limit=4",
        "method.name=lora",
        "method.rank=8",
        "method.sites=q,k,v,o,ffn",
        "local.optimizer=sgd",
        "local.schedule=constant",
        "local.steps=1",
        "local.lr=1e-4",
        "engine.threads=1",
        f"seed={seed}",
    ]
    runtime = runtime_of(Experiment.load("", overrides))
    return runtime, plant(runtime.model, runtime.train, CANARIES, seed)


@lru_cache
def sigma() -> float:
    """The noise that the claim of EPSILON is calibrated for."""
    return calibrate(EPSILON, DELTA, RATE, ROUNDS)


def dpsgd(noise_multiplier: float, clip: float, seed: int, round_number: int) -> DPSGD:
    noise = SeededNoise(generator(seed, "test-noise", round_number))
    return DPSGD(Mechanism(noise_multiplier, RATE, 1), clip, "flat", 64, noise)


def attacked(seed: int, noise_multiplier: float, clip: float) -> np.ndarray:
    """Return the canaries' scores where training does this and claims (sigma, CLIP)."""
    runtime, planted = world(seed)
    local = runtime.experiment.local
    vectors = train(
        runtime.model,
        planted,
        local,
        ROUNDS,
        seed,
        lambda number: dpsgd(noise_multiplier, clip, seed, number),
    )
    return scores(runtime.model, planted, vectors, local.lr, dpsgd(sigma(), CLIP, seed, 0))


def bound(seed: int, noise_multiplier: float, clip: float) -> float:
    weights = attacked(seed, noise_multiplier, clip)
    right = right_guesses(weights, world(seed)[1].included, GUESSES)
    return lower_bound(CANARIES, GUESSES, right, DELTA, 0.95)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_of_a_right_run_stays_under_the_claim(seed: int) -> None:
    assert bound(seed, sigma(), CLIP) < EPSILON


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_exceeds_the_claim_when_noise_is_switched_off(seed: int) -> None:
    """All guesses right give 3.26, the most that so many can show."""
    assert bound(seed, 0.0, CLIP) > 2 * EPSILON


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_exceeds_the_claim_when_clipping_is_broken(seed: int) -> None:
    """Gradients pass uncut up to 100 C, and the noise is still that of C: sigma C in either."""
    assert bound(seed, sigma() / 100, 100 * CLIP) > 1.5 * EPSILON


def test_the_attack_does_not_look_at_the_coins() -> None:
    runtime, planted = world(0)
    draw = np.random.default_rng(0)
    walk = 1e-4 * draw.normal(size=(3, len(planted.start)))
    vectors = (planted.start + walk).astype(planted.start.dtype)
    claimed = dpsgd(sigma(), CLIP, 0, 0)
    turned = replace(planted, included=~planted.included)
    one, other = (
        scores(runtime.model, canary, vectors, 1e-4, claimed) for canary in (planted, turned)
    )
    np.testing.assert_array_equal(one, other)


def test_full_batches_without_noise_reveal_every_canary() -> None:
    """Then an update is the sum of the gradients of those that are in, and the system is solved."""
    runtime, planted = world(0)
    claimed = replace(dpsgd(0.0, CLIP, 0, 0), mechanism=Mechanism(0.0, 1.0, 1))
    local = runtime.experiment.local
    vectors = train(runtime.model, planted, local, 1, 0, lambda _: claimed)
    weights = scores(runtime.model, planted, vectors, local.lr, claimed)
    assert weights[planted.included].min() > weights[~planted.included].max() + 0.5


def test_without_privacy_the_client_trains_plainly() -> None:
    runtime, planted = world(0)
    seen = []
    vectors = train(
        runtime.model,
        planted,
        runtime.experiment.local,
        3,
        0,
        None,
        lambda: seen.append(None),
    )
    assert vectors.shape == (4, runtime.model.layout.size)
    assert len(seen) == 3
    assert (np.abs(np.diff(vectors, axis=0)).max(axis=1) > 0).all()


def test_canaries_are_mislabeled_and_a_coin_decides_who_is_in() -> None:
    runtime, planted = world(0)
    others = EXAMPLES - CANARIES
    outputs = outputs_of(runtime.model, planted.start, planted.candidates)
    np.testing.assert_array_equal(
        planted.candidates.labels[others:], outputs[others:].argmin(axis=1)
    )
    trained = planted.trained
    assert len(trained) == others + planted.included.sum()
    kept = [*range(others), *(others + np.flatnonzero(planted.included))]
    np.testing.assert_array_equal(trained.tokens, planted.candidates.select(np.array(kept)).tokens)
    coins = np.concatenate(
        [plant(runtime.model, runtime.train, CANARIES, seed).included for seed in range(20)]
    )
    assert abs(coins.mean() - 0.5) < 5 * 0.5 / len(coins) ** 0.5


def test_gradients_from_the_attackers_start_differ_more_than_from_the_usual_one() -> None:
    """The least squares need it: as many directions as candidates."""
    runtime, planted = world(0)

    def directions(vector: np.ndarray) -> int:
        parts = list(gradients_at(runtime.model, vector, planted.candidates, 64))
        rows = np.concatenate([part.numpy() for part in parts]).astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return int((np.linalg.svd(rows, compute_uv=False) > 0.1).sum())

    assert directions(attacker_start(runtime.model, 0)) > 4 * directions(
        runtime.parameters.initial(0)
    )
