"""Sums under masks are exact, and masked updates are uniform; noise in them is calibrated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sums import BITS, SIZE, Federation, play

from clients.assignment import Masked
from clients.errors import ClientError
from clients.secure import secrets
from fedpeft.experiment.config import Experiment
from fedpeft.secure import keys, ring
from fedpeft.secure.masks import masks, self_seed, unpacked
from fedpeft.wire.messages import Request

Quick = Callable[..., Experiment]


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([3], []), ([], [0, 9]), ([4], [7]), ([0, 9], [])]
)
def test_the_sum_is_exact_with_clients_lost_before_and_after_masking(
    ten: Federation, before: list[int], after: list[int]
) -> None:
    found, expected = play(ten, before, after)
    np.testing.assert_array_equal(found, expected)


def test_few_holders_of_shares_and_a_fifth_of_the_clients_lost(
    quick: Quick, tmp_path: Path
) -> None:
    settings = ["federation.secure=true", "federation.clients=140", "secure.colluders=7"]
    crowd = Federation(quick(*settings, "task.train_limit=1400"), tmp_path)
    assert crowd.rules().holders < 80
    found, expected = play(crowd, [*range(14)], [*range(60, 74)])
    np.testing.assert_array_equal(found, expected)


def test_rounds_follow_each_other_with_new_keys(ten: Federation) -> None:
    before = None
    for number in (1, 2):
        found, expected = play(ten, [number], [], number)
        np.testing.assert_array_equal(found, expected)
        latest = secrets.read(ten.data[0]).latest
        assert latest and latest.key_seed != before
        before = latest.key_seed


def test_masked_updates_are_uniform(ten: Federation) -> None:
    """Chi squared of the masked zeros of all clients, over 64 bins of 12 bits."""
    prepared = ten.prepare()
    zeros = np.zeros(6400, np.uint64)
    for client in ten.clients:
        levels, _ = ten.mask(prepared, client, zeros)
        counts = np.bincount(levels.astype(int) * 64 >> BITS, minlength=64)
        assert ((counts - 100.0) ** 2 / 100.0).sum() < 130  # 63 degrees: p = 1e-6


def test_each_kind_of_mask_alone_makes_an_update_uniform(ten: Federation) -> None:
    prepared = ten.prepare()
    masking = ten.masking(prepared, 3)
    zeros, facts = np.zeros(6400, np.uint64), np.zeros(2, np.uint64)
    whole, _ = unpacked(masking.mask(zeros, facts, BITS), 6400, BITS)
    latest = secrets.read(ten.data[3]).latest
    assert latest
    own, _ = masks(6400, BITS, [self_seed(latest.mask_seed)], [])
    pairs = ring.reduced(whole - own, BITS)
    for part in (own, pairs):
        counts = np.bincount(part.astype(int) * 64 >> BITS, minlength=64)
        assert ((counts - 100.0) ** 2 / 100.0).sum() < 130


def test_masked_updates_of_two_clients_are_not_alike(ten: Federation) -> None:
    prepared, zeros = ten.prepare(), np.zeros(SIZE, np.uint64)
    rows = [ten.mask(prepared, client, zeros)[0].tobytes() for client in ten.clients]
    assert len({*rows}) == 10


def test_the_noise_of_a_round_is_new_for_each_preparation(ten: Federation) -> None:
    """And follows from no secret of which the peers hold shares."""
    seeds = set()
    for number in (1, 2):
        ten.prepare(number)
        latest = secrets.read(ten.data[0]).latest
        assert latest
        shared = [keys.derived(seed, "noise") for seed in (latest.key_seed, latest.mask_seed)]
        assert latest.noise_seed not in shared
        seeds.add(latest.noise_seed)
    assert len(seeds) == 2


@pytest.mark.parametrize("norm", [0.0, -0.5, np.inf, np.nan])
def test_a_clip_norm_must_be_positive_and_finite(ten: Federation, norm: float) -> None:
    request = Request(round=1, clip_norm=norm, max_weight=1e6)
    with pytest.raises(ClientError, match=r"the clip norm or the largest weight .* out of range"):
        Masked.read(ten.data[0], request)


@pytest.mark.parametrize("weight", [0.0, 0.5, np.inf, np.nan])
def test_the_largest_weight_is_at_least_that_of_the_client(ten: Federation, weight: float) -> None:
    request = Request(round=1, clip_norm=1.0, max_weight=weight)
    with pytest.raises(ClientError, match=r"the clip norm or the largest weight .* out of range"):
        Masked.read(ten.data[0], request)


@pytest.mark.parametrize(("norm", "weight"), [(2.0, 1.0), (1.0, 5.0)])
def test_noise_is_for_the_clip_and_weight_of_the_experiment(
    quick: Quick, tmp_path: Path, norm: float, weight: float
) -> None:
    noise = ["privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=4"]
    ten = Federation(quick("federation.secure=true", "federation.clients=10", *noise), tmp_path)
    request = Request(round=1, clip_norm=norm, max_weight=weight)
    with pytest.raises(ClientError, match=r"expected privacy.client_clip = 1 and 1"):
        Masked.read(ten.data[0], request)


def test_files_of_secrets_are_private_and_say_if_they_are_damaged(ten: Federation) -> None:
    ten.prepare()
    [path, *_] = sorted((ten.folder / "kept" / "secure").iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    with pytest.raises(Exception, match="file of this client's secrets is damaged"):
        secrets.read(ten.data[0])
