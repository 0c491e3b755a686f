"""Codecs of second moments: what is kept, and bytes that are not trusted."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.wire.scatter import (
    Draw,
    check_scatter,
    decode_scatter,
    directions,
    encode_scatter,
    scatter_size,
)

WIDTH = 96


def draws(seed: int = 0) -> Draw:
    """Return fresh generators, the same for each purpose."""
    return lambda purpose: np.random.default_rng([seed, *purpose.encode()])


def moments(rank: int, seed: int = 0) -> np.ndarray:
    """Return second moments whose eigenvalues fall by a tenth from one direction to the next."""
    random = np.random.default_rng(seed)
    within, _ = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))
    values = np.where(np.arange(WIDTH) < rank, 100 * 0.9 ** np.arange(WIDTH), 0.0)
    return (within * values) @ within.T


def decoded(scatter: np.ndarray, codec: str, seed: int = 0) -> tuple[np.ndarray, float]:
    code = encode_scatter(scatter, codec, draws(seed))
    assert len(code) == scatter_size(WIDTH, codec)
    return decode_scatter(code, WIDTH, codec, float(np.trace(scatter)), draws(seed))


@pytest.mark.parametrize(
    ("codec", "error"), [("float64", 1e-12), ("float32", 1e-6), ("eden8", 0.02)]
)
def test_all_numbers_arrive_as_exactly_as_their_codec(codec: str, error: float) -> None:
    scatter = moments(WIDTH)
    found, noise = decoded(scatter, codec)
    assert np.abs(found - found.T).max() == 0
    distance = np.linalg.norm(found - scatter)
    assert distance <= error * np.linalg.norm(scatter)
    assert (noise > 0) == codec.startswith("eden")
    assert distance <= 2 * np.sqrt(noise) * WIDTH or not noise


def test_principal_directions_keep_the_trace_and_spread_the_rest_over_the_others() -> None:
    scatter = moments(WIDTH)
    found, noise = decoded(scatter, "pca24")
    assert noise == 0
    assert np.trace(found) == pytest.approx(np.trace(scatter), rel=0.01)
    values = np.linalg.eigvalsh(found)
    assert values.min() > 0
    rest = np.sort(np.linalg.eigvalsh(scatter))[: WIDTH - 24].mean()
    assert np.median(values) == pytest.approx(rest, rel=0.15)
    largest = np.linalg.eigh(scatter)[1][:, -8:]
    kept = np.linalg.norm(largest.T @ np.linalg.eigh(found)[1][:, -24:]) ** 2 / 8
    assert kept > 0.95


def test_few_examples_have_few_directions() -> None:
    found, _ = decoded(moments(3), "pca24")
    assert np.linalg.norm(found - moments(3)) < 0.2 * np.linalg.norm(moments(3))
    nothing, _ = decoded(np.zeros((WIDTH, WIDTH)), "pca24")
    assert not nothing.any()


def test_directions_say_more_than_one_bit_of_all_numbers_in_as_many_bytes() -> None:
    wins = 0
    for seed in range(5):
        scatter = moments(WIDTH, seed)
        few, _ = decoded(scatter, "pca12", seed)
        coarse, _ = decoded(scatter, "eden1", seed)
        wins += np.linalg.norm(few - scatter) < 0.7 * np.linalg.norm(coarse - scatter)
    assert wins == 5
    assert scatter_size(WIDTH, "pca12") <= 1.15 * scatter_size(WIDTH, "eden1")


def test_numbers_that_are_not_finite_are_refused() -> None:
    code = bytearray(encode_scatter(moments(WIDTH), "pca4", draws()))
    code[:4] = np.float32(np.nan).tobytes()
    with pytest.raises(ValueError, match=r"NaN|finite|scale"):
        decode_scatter(bytes(code), WIDTH, "pca4", 1.0, draws())


@pytest.mark.parametrize("name", ["pca0", "pca", "pca-3", "pca1.5", "topk0.5", "PCA3", "pca999999"])
def test_other_codecs_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="pcaK"):
        check_scatter(name)
    with pytest.raises(UserError, match=r"head\.moments"):
        Experiment.load("", [f"head.moments={name}"])


def test_a_codec_keeps_its_shortest_name() -> None:
    assert [check_scatter(name) for name in ("pca32", "none", "eden0.50")] == [
        *("pca32", "none", "eden0.5"),
    ]
    assert [directions(name, 24) for name in ("pca8", "pca32", "none", "eden1")] == [8, 24, 0, 0]
