"""Noise sources: their law, their independence, and who can draw them again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedpeft.privacy.noise import Noise, SecureNoise, SeededNoise
from fedpeft.randomness import generator

COUNT = 200_000


def seeded(client: int = 0) -> SeededNoise:
    return SeededNoise(generator(1, "test", 2, client))


@pytest.mark.parametrize("noise", [SecureNoise(), seeded()], ids=["secure", "seeded"])
def test_normals_are_standard_normal(noise: Noise) -> None:
    drawn = noise.normal(COUNT)
    assert drawn.dtype == np.float64
    # A true source fails one of a million times.
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    spread = math.sqrt(2 / COUNT)
    assert drawn.var() == pytest.approx(1, abs=5 * spread)
    assert abs(drawn).max() > 3.8  # the tails are there
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(COUNT)


def test_secure_numbers_never_come_again() -> None:
    one, other = SecureNoise(), SecureNoise()
    drawn = np.concatenate([one.normal(1000), one.normal(1000), other.normal(1000)])
    assert len(np.unique(drawn)) == 3000
    assert one.sampler().initial_seed() != one.sampler().initial_seed()
    assert one.releasable


def test_secure_numbers_owe_nothing_to_seeds() -> None:
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        drawn.append(SecureNoise().normal(10))
    assert not np.array_equal(*drawn)


def test_seeded_numbers_come_again_and_must_not_be_released() -> None:
    assert np.array_equal(seeded().normal(10), seeded().normal(10))
    assert not np.array_equal(seeded(0).normal(10), seeded(1).normal(10))
    assert seeded().sampler().initial_seed() == seeded().sampler().initial_seed()
    assert not seeded().releasable
