"""Noise sources: their law, their independence, and who can draw them again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedpeft.privacy.noise import Noise, SecureNoise, SeededNoise, noise_of, poisson
from fedpeft.randomness import generator

COUNT = 200_000  # more than three pieces


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


def test_secure_numbers_do_not_repeat() -> None:
    one, other = SecureNoise(), SecureNoise()
    drawn = np.concatenate([one.normal(1000), one.normal(1000), other.normal(1000)])
    assert len(np.unique(drawn)) == 3000


def test_secure_numbers_do_not_depend_on_seeds() -> None:
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        drawn.append(SecureNoise().normal(10))
    assert not np.array_equal(*drawn)


def test_seeded_numbers_repeat() -> None:
    assert np.array_equal(seeded().normal(10), seeded().normal(10))
    assert not np.array_equal(seeded(0).normal(10), seeded(1).normal(10))
    assert np.array_equal(seeded().uniform(10), seeded().uniform(10))


@pytest.mark.parametrize("noise", [SecureNoise(), seeded()], ids=["secure", "seeded"])
def test_uniform_numbers_are_uniform_and_never_0_or_1(noise: Noise) -> None:
    drawn = noise.uniform(COUNT)
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6
    assert 0 < drawn.min() < drawn.max() < 1


def test_the_largest_and_smallest_secure_words_make_finite_normals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system's generator is the one thing here that cannot be made to give them."""
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr("secrets.token_bytes", lambda size, byte=byte: byte * size)
        assert np.isfinite(SecureNoise().normal(3)).all()


def test_poisson_sample_sizes_match_opacus() -> None:
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    count, rate, often = 40, 0.3, 3000
    opacus_batches = UniformWithReplacementSampler(
        num_samples=count,
        sample_rate=rate,
        generator=torch.Generator().manual_seed(1),
        steps=often,
    )
    sizes = [[len(rows) for rows in opacus_batches]]
    noise = seeded(3)
    sizes.append([len(poisson(noise, count, rate)) for _ in range(often)])
    top = max(map(max, sizes)) + 1
    table = np.array([np.bincount(sample, minlength=top) for sample in sizes])
    table = table[:, table.sum(0) >= 10]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert len(poisson(noise, count, 1.0)) == count


def test_only_reproducible_noise_comes_from_the_seed() -> None:
    one, other = (noise_of(True, 7, "test", 1, 2).normal(5) for _ in range(2))
    assert np.array_equal(one, other)
    one, other = (noise_of(False, 7, "test", 1, 2).normal(5) for _ in range(2))
    assert not np.array_equal(one, other)
