"""What is done to updates: sensitivity, noise and the adaptive clip.

Bounds on random sums are quantiles of their distribution at a chance of 1e-9 on either side, so
that a test with the system's noise does not fail by itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2, lognorm

from fedpeft.errors import UserError
from fedpeft.privacy.noise import Noise, SecureNoise, SeededNoise
from fedpeft.privacy.updates import AdaptiveClip, clipped, noisy_mean, noisy_update
from fedpeft.randomness import generator

ANY_FLOAT = st.floats(width=32) | st.floats()
VECTORS = arrays(np.float64, 3, elements=ANY_FLOAT)
CLIPS = st.floats(1e-6, 1e6)


def seeded(number: int = 0) -> Noise:
    return SeededNoise(generator(number, "test"))


def within_chance(squares: float, count: int) -> bool:
    """Whether a sum of ``count`` squared standard normals is one that occurs."""
    low, high = chi2.ppf([1e-9, 1 - 1e-9], count)
    return bool(low < squares < high)


@given(VECTORS, CLIPS)
def test_no_update_is_longer_than_the_clip(update: np.ndarray, clip: float) -> None:
    short, was_within = clipped(update, clip)
    assert np.linalg.norm(short) <= clip * (1 + 1e-12)
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.linalg.norm(update))
    if was_within:
        assert np.array_equal(short, update if finite else np.zeros(3))
    else:  # cut along its direction, to the clip itself
        assert np.linalg.norm(short) == pytest.approx(clip, rel=1e-12)
        assert short @ (update / np.linalg.norm(update)) == pytest.approx(clip, rel=1e-9)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_an_update_without_a_finite_norm_counts_as_zero(wrong: float, clip: float) -> None:
    short, was_within = clipped(np.array([1.0, wrong, 2.0]), clip)
    assert short.tolist() == [0.0, 0.0, 0.0]
    assert was_within


def test_a_clip_of_zero_does_not_clip_and_allows_no_noise() -> None:
    update = np.array([3e5, -4e5], dtype=np.float32)
    assert clipped(update, 0.0)[0].tolist() == [3e5, -4e5]
    for mechanism in (
        lambda: noisy_mean(update[None], 0.0, 1.0, 2, seeded()),
        lambda: noisy_update(update, 0.0, 1.0, seeded()),
    ):
        with pytest.raises(ValueError, match=r"clip=0\.0"):
            mechanism()


@settings(max_examples=300)
@given(st.lists(VECTORS, max_size=4), VECTORS, CLIPS, st.integers(1, 5), st.integers(0, 4))
def test_one_client_moves_the_mean_by_at_most_clip_over_expected(
    others: list[np.ndarray], one: np.ndarray, clip: float, expected: int, place: int
) -> None:
    """However many others there are, and whatever the client sends."""
    place = min(place, len(others))
    without = noisy_mean(np.reshape(others, (-1, 3)), clip, 0.0, expected, seeded())
    everybody = np.array([*others[:place], one, *others[place:]])
    with_one = noisy_mean(everybody, clip, 0.0, expected, seeded())
    assert np.linalg.norm(with_one - without) <= clip / expected * (1 + 1e-9)


def test_the_bound_on_one_client_is_reached() -> None:
    """Else noise of this size would be more than is needed."""
    others, one = np.ones((3, 2)), np.array([[30.0, 40.0]])
    with_one = noisy_mean(np.vstack([others, one]), 5.0, 0.0, 4, seeded())
    moved = with_one - noisy_mean(others, 5.0, 0.0, 4, seeded())
    assert moved.tolist() == [3 / 4, 4 / 4]


def test_the_mean_divides_by_the_expected_number_and_weighs_all_the_same() -> None:
    updates = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    assert noisy_mean(updates, 5.0, 0.0, 4, seeded()).tolist() == [1.0, 1.5]
    assert noisy_mean(updates[:0], 5.0, 0.0, 4, seeded()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("noise", [SecureNoise(), seeded()])
@pytest.mark.parametrize("answered", [0, 1, 7])
def test_the_noise_on_the_mean_is_sigma_clip_over_expected(noise: Noise, answered: int) -> None:
    sigma, clip, expected, size = 1.7, 0.3, 5, 50_000
    updates = np.random.default_rng(1).normal(size=(answered, size))  # all longer than the clip
    exact = noisy_mean(updates, clip, 0.0, expected, noise)
    drawn = (noisy_mean(updates, clip, sigma, expected, noise) - exact) * expected / (sigma * clip)
    assert within_chance(drawn @ drawn, size)
    assert abs(drawn.sum()) < 6 * np.sqrt(size)


def test_local_noise_covers_the_difference_of_any_two_updates() -> None:
    """Two clipped updates are up to 2 C apart."""
    sigma, clip, size = 0.8, 2.0, 50_000
    update = np.full(size, 0.1)
    exact = noisy_update(update, clip, 0.0, seeded())
    assert np.linalg.norm(exact) == pytest.approx(clip)
    one, other = (
        (noisy_update(update, clip, sigma, SecureNoise()) - exact) / (2 * sigma * clip)
        for _ in range(2)
    )
    assert within_chance(one @ one, size)
    assert abs(one @ other) < 6 * np.sqrt(size)  # independent of another client's


@given(st.floats(0.01, 4.9), st.integers(50, 1000))
def test_the_noise_is_split_so_that_both_queries_cost_what_one_does(
    z: float, expected: int
) -> None:
    split = AdaptiveClip(0.5, expected, z)
    assert split.count_noise == pytest.approx(expected / 20)
    together = split.update_noise**-2 + (2 * split.count_noise) ** -2
    assert together == pytest.approx(z**-2, rel=1e-12)
    assert split.update_noise > z


def test_too_few_clients_for_an_adaptive_clip_are_refused() -> None:
    AdaptiveClip(0.5, 10, 0.99)
    with pytest.raises(UserError, match=r"client_quantile = 0\.5: noise .* 10 clients"):
        AdaptiveClip(0.5, 10, 1.0)


@given(st.lists(VECTORS, max_size=4), VECTORS, CLIPS)
def test_one_client_moves_the_count_by_a_half(
    others: list[np.ndarray], one: np.ndarray, clip: float
) -> None:
    """The sensitivity that the split is made for; log C moves by 0.2 / 2 / expected."""
    adaptive = AdaptiveClip(0.3, 10, 0.0)
    without = adaptive.adapted(clip, np.reshape(others, (-1, 3)), seeded())
    with_one = adaptive.adapted(clip, np.array([*others, one]), seeded())
    assert abs(np.log(with_one / without)) == pytest.approx(0.2 * 0.5 / 10)


def test_the_clip_follows_the_formula_and_its_noise_is_sigma_b() -> None:
    updates = np.array([[1.0], [3.0], [3.5], [9.0]])
    exact = AdaptiveClip(0.9, 4, 0.0)
    assert exact.adapted(3.0, updates, seeded()) == pytest.approx(3 * np.exp(-0.2 * (0.5 - 0.9)))
    noisy, noise, count = AdaptiveClip(0.9, 4, 0.1), seeded(), 20_000
    clips = np.array([noisy.adapted(3.0, updates, noise) for _ in range(count)])
    drawn = (0.9 - np.log(clips / 3.0) / 0.2 - 0.5) * 4 / noisy.count_noise
    assert within_chance(drawn @ drawn, count)


@pytest.mark.parametrize(("quantile", "start"), [(0.2, 50.0), (0.5, 0.01), (0.9, 50.0)])
def test_the_clip_goes_to_the_quantile_of_the_norms(quantile: float, start: float) -> None:
    count = 300
    norms = lognorm.ppf((np.arange(count) + 0.5) / count, s=1.0)
    adaptive, clip = AdaptiveClip(quantile, count, 0.0), start
    for _ in range(250):
        clip = adaptive.adapted(clip, norms[:, None], seeded())
    assert (norms <= clip).mean() == pytest.approx(quantile, abs=2 / count)


def test_the_clip_stays_around_the_quantile_with_noise() -> None:
    """sigma_b / expected = 1/20 and the density of log-norms at their median is 0.399, so the
    mean log C of 400 rounds has a standard deviation of 1/20 / 0.399 / sqrt(400) = 0.0063."""
    norms = lognorm.ppf((np.arange(100) + 0.5) / 100, s=1.0)
    adaptive, clip, noise = AdaptiveClip(0.5, 100, 1.0), 1.0, seeded()
    logs = []
    for _ in range(400):
        clip = adaptive.adapted(clip, norms[:, None], noise)
        logs.append(np.log(clip))
    assert abs(np.mean(logs)) < 5 * 0.0063
    assert np.std(logs) > 0.01  # there is noise
