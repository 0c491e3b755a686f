"""Zeroth-order gradients against exact ones, a loop over single points, and replayed steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from models import GROUPED, build_model, encoded

from fedpeft.backbones.loading import Backbone
from fedpeft.experiment.settings import LocalSection
from fedpeft.optimization.zeroth import combined, directions, measure, replay
from fedpeft.randomness import When
from fedpeft.training import evaluate, train_cohort

WHEN = When(seed=5, round=2, rounds=4)
SIZES = [9, 20, 4]


def drawn(seed: int, number: int, step: int, count: int, size: int) -> torch.Tensor:
    """Return directions in float64, [count, size]."""
    like = torch.empty(1, size, dtype=torch.float64)
    return directions(LocalSection(perturbations=count), When(seed, number, 9), step, like)


def orthonormal(size: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]


@pytest.mark.parametrize("name", ["slash", "linear", "jr_warp", "lora"])
def test_directions_that_span_the_space_give_the_exact_gradient(tiny: Backbone, name: str) -> None:
    """P orthogonal directions of length sqrt(P), as random ones have; s^2 = 1e-8 is the error."""
    model = build_model(tiny, name)
    data = [encoded(tiny, "synthetic/sentiment", "mask", 12)] * 2
    rows = [np.arange(5), np.arange(5, 12)]
    size = model.layout.size
    draw = torch.Generator().manual_seed(2)
    vectors = 0.3 * torch.randn(2, size, generator=draw, dtype=torch.float64)
    along = orthonormal(size) * size**0.5
    slopes, losses = measure(model, vectors, data, rows, along, 1e-4 / size**0.5)
    exact, means = model.gradients(vectors, model.collate(data, rows))
    assert exact.abs().max() > 0.01
    torch.testing.assert_close(combined(slopes, along), exact, rtol=0, atol=1e-7)
    torch.testing.assert_close(losses, means, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("name", "count"), [("slash", 70), *((name, 3) for name in GROUPED)])
def test_points_in_one_batch_equal_a_loop_over_single_points(
    tiny: Backbone, name: str, count: int
) -> None:
    """70 directions of 2 x 4 texts take several passes."""
    model = build_model(tiny, name)
    data, rows = encoded(tiny, "synthetic/sentiment", "mask", 8), np.array([1, 3, 4, 7])
    vector = torch.from_numpy(model.parameters.initial(0))
    along = drawn(0, 1, 0, count, model.layout.size)
    slopes, _ = measure(model, vector[None], [data], [rows], along, 0.01)

    def loss(point: torch.Tensor) -> float:
        batch = model.collate([data], [rows])
        return float(model.losses(model.outputs(model.realise(point[None]), batch), batch).mean())

    with torch.no_grad():
        expected = [(loss(vector + 0.01 * u) - loss(vector - 0.01 * u)) / 0.02 for u in along]
    np.testing.assert_allclose(slopes[0], expected, rtol=0, atol=1e-11)


def test_the_estimate_is_the_gradient_on_average(tiny: Backbone) -> None:
    """The mean of n estimates is off by sqrt(P / n) of the gradient's length, here 0.2."""
    model = build_model(tiny, "slash")
    data, rows = [encoded(tiny, "synthetic/sentiment", "mask", 4)], [np.arange(4)]
    vectors = torch.from_numpy(model.parameters.initial(0))[None]
    exact, _ = model.gradients(vectors, model.collate(data, rows))
    count, size = 2_000, model.layout.size
    along = drawn(3, 1, 0, count, size)
    estimate = combined(measure(model, vectors, data, rows, along, 1e-3)[0], along)
    error = float((estimate - exact).norm() / exact.norm())
    assert 0.7 < error / (size / count) ** 0.5 < 1.3


def test_directions_belong_to_seed_round_and_step_and_more_begin_with_fewer() -> None:
    keys = [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)]
    assert len({drawn(*key, 4, 100).numpy().tobytes() for key in keys}) == 4
    assert torch.equal(drawn(0, 1, 0, 9, 100)[:4], drawn(0, 1, 0, 4, 100))
    long = drawn(0, 1, 0, 10, 10_000)
    assert abs(long.mean()) < 0.01 and abs(long.std() - 1) < 0.01


def test_a_ragged_cohort_equals_single_clients(tiny: Backbone) -> None:
    local = LocalSection(optimizer="sgd", lr=0.1, batch_size=4, perturbations=5)
    model = build_model(tiny, "slash")
    whole = encoded(tiny, "synthetic/sentiment", "mask", sum(SIZES))
    ends = np.cumsum([0, *SIZES])
    data = [whole.select(np.arange(a, b)) for a, b in pairwise(ends)]
    start = model.parameters.initial(0)
    together = train_cohort(model, start, data, [4, 8, 2], local, WHEN)
    assert together.steps.tolist() == [3, 5, 1]
    assert together.slopes.shape == (3, 5, 5)
    assert np.abs(together.vectors - start).max() > 0.01
    for k, client in enumerate([4, 8, 2]):
        alone = train_cohort(model, start, [data[k]], [client], local, WHEN)
        steps = alone.steps[0]
        np.testing.assert_allclose(together.vectors[k], alone.vectors[0], rtol=0, atol=1e-11)
        np.testing.assert_allclose(together.slopes[k, :steps], alone.slopes[0], rtol=0, atol=1e-10)
        assert not together.slopes[k, steps:].any()
        assert together.losses[k] == pytest.approx(alone.losses[0], abs=1e-11)


@pytest.mark.parametrize(
    "local",
    [
        LocalSection(optimizer="sgd", lr=0.1, steps=1, perturbations=3, max_grad_norm=0),
        LocalSection(optimizer="sgd", lr=0.1, steps=4, perturbations=3, momentum=0.9),
        LocalSection(lr=0.01, steps=3, perturbations=2, weight_decay=0.1, proximal_mu=0.3),
    ],
    ids=["plain", "momentum", "adamw"],
)
def test_replayed_steps_end_in_the_clients_vector_to_the_bit(
    tiny: Backbone, local: LocalSection
) -> None:
    model = build_model(tiny, "slash")
    start = model.parameters.initial(0)
    data = encoded(tiny, "synthetic/sentiment", "mask", 20)
    result = train_cohort(model, start, [data], [3], local, WHEN)
    again = replay(local, WHEN, start, result.slopes[0])
    assert np.abs(again - start).max() > 1e-3
    assert again.tobytes() == result.vectors[0].tobytes()


def test_a_client_learns_its_examples_from_forward_passes(tiny: Backbone) -> None:
    """Exact gradients with a learning rate of 0.3 reach 0.29 of the loss; these reach 0.20."""
    model = build_model(tiny, "slash")
    data = encoded(tiny, "synthetic/sentiment", "mask", 16)
    local = LocalSection(optimizer="sgd", lr=1.0, steps=200, perturbations=4)
    start = model.parameters.initial(0)
    result = train_cohort(model, start, [data], [0], local, When(0, 1, 1))
    before, after = (
        evaluate(model, vector, data).loss_sum for vector in (start, result.vectors[0])
    )
    assert after < 0.3 * before


def test_all_points_share_the_states_below_the_first_changed_block(tiny: Backbone) -> None:
    """A step reads 4 of the 20 texts, and each of them six times."""
    model = build_model(tiny, "slash", d=12, layers="upper half")
    data = encoded(tiny, "synthetic/sentiment", "mask", 20)
    local = LocalSection(optimizer="sgd", lr=0.1, batch_size=4, steps=1, perturbations=3)
    start, vectors = model.parameters.initial(0), []
    for limit in (1 << 20, 0):
        model.keep_states(limit)
        vectors.append(train_cohort(model, start, [data], [0], local, WHEN).vectors[0])
        assert (model.kept.size > 0) == (limit > 0)
    assert np.abs(vectors[0] - start).max() > 1e-3
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=1e-11)
