"""DP-SGD on one client: against plain SGD, against loops, and the laws of its randomness."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from models import METHODS, build_model, encoded
from pairs import UNLIKE_METHODS
from scipy import stats

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import (
    DPSGD,
    clipped_sums,
    poisson_batches,
    private_gradients,
)
from fedpeft.privacy.noise import SecureNoise, SeededNoise
from fedpeft.randomness import generator
from fedpeft.training import When, train_cohort

WHEN = When(seed=5, round=2, rounds=4)


def private(
    sigma: float = 0.0, q: float = 1.0, steps: int = 3, client: int = 0, **changes: Any
) -> DPSGD:
    noise = SeededNoise(generator(5, "test-noise", 2, client))
    usual = {"clip": 0.0, "clipping": "flat", "physical_batch": 8, "noise": noise}
    return DPSGD(Mechanism(sigma, q, steps), **{**usual, **changes})


def data_of(backbone: Backbone, count: int) -> Encoded:
    return encoded(backbone, "synthetic/sentiment", "mask", count)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, "sgd") for name in METHODS), *((name, "adamw") for name in UNLIKE_METHODS)],
)
def test_dpsgd_without_noise_and_clipping_is_plain_training(
    tiny: Backbone, name: str, optimizer: str
) -> None:
    """q = 1 takes all examples in every step, as a plain batch of all of them does."""
    model, data = build_model(tiny, name), data_of(tiny, 10)
    local = LocalSection(optimizer=optimizer, lr=0.05, batch_size=10, steps=3, max_grad_norm=0)
    start = model.parameters.initial(0)
    plain = train_cohort(model, start, [data], [7], local, WHEN)
    trained = train_cohort(model, start, [data], [7], local, WHEN, [private()])
    np.testing.assert_allclose(trained.vectors, plain.vectors, rtol=0, atol=1e-9)
    # An update of zero would pass every test of privacy (Opacus issue 820).
    assert np.abs(trained.vectors[0] - start).max() > 0.01
    assert np.isnan(trained.losses).all()
    assert trained.steps.tolist() == [3]


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
@pytest.mark.parametrize("name", ["slash", "jr_warp", "lora", "linear", "full"])
def test_a_step_is_the_sum_of_clipped_gradients_of_a_loop(
    tiny: Backbone, name: str, clipping: str
) -> None:
    model, data = build_model(tiny, name), data_of(tiny, 11)
    vector = torch.from_numpy(model.parameters.initial(1))[None]
    rows, clip, q = np.array([0, 3, 4, 7, 8, 10]), 0.7, 0.5
    pad_id = tiny.tokenizer.pad_token_id
    expected, norms = torch.zeros_like(vector[0]), []
    for row in rows:
        batch = collate([data], [np.array([row])], pad_id, "cpu", model.dtype)
        gradient = model.gradients(vector, batch)[0][0]
        norm = float(gradient.norm())
        factor = min(1.0, clip / norm) if clipping == "flat" else clip / (norm + 0.01)
        expected, norms = expected + factor * gradient, [*norms, norm]
    assert max(norms) > clip  # otherwise nothing is clipped
    how = private(q=q, clip=clip, clipping=clipping, physical_batch=4)
    gradient = private_gradients(model, vector, [data], [rows], [how])[0]
    # Divided by the expected batch, 5.5, not by the 6 that came.
    torch.testing.assert_close(gradient, expected / 5.5, rtol=0, atol=2e-6)
    # With a public number of examples, by the batch that is expected of that number.
    shown = replace(how, examples=20)
    gradient = private_gradients(model, vector, [data], [rows], [shown])[0]
    torch.testing.assert_close(gradient, expected / 10, rtol=0, atol=2e-6)


@given(
    scale=some.floats(1e-6, 1e6),
    clip=some.floats(1e-3, 1e3),
    clipping=some.sampled_from(["flat", "automatic"]),
    seed=some.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_one_example_moves_the_sum_by_at_most_the_clip(
    scale: float, clip: float, clipping: str, seed: int
) -> None:
    """Guarantee: the sensitivity is C, for one client's sum, and 0 for its neighbour's."""
    draw = torch.Generator().manual_seed(seed)
    gradients = scale * torch.randn(2 * 3, 5, generator=draw, dtype=torch.float64)
    changed = gradients.clone()
    changed[4] = 0  # as if the example were not there
    how = private(clip=clip, clipping=clipping)
    moved = clipped_sums(gradients, 2, how) - clipped_sums(changed, 2, how)
    assert moved[1].norm() <= clip * (1 + 1e-9)
    assert not moved[0].any()


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_a_gradient_of_millions_of_numbers_is_within_the_clip(clipping: str) -> None:
    """In float32, where torch's own norm of so many numbers is wrong."""
    gradients = torch.full((2, 5_000_000), 1e-3)
    gradients[1] = torch.randn(5_000_000, generator=torch.Generator().manual_seed(0))
    for gradient in gradients:
        total = clipped_sums(gradient[None], 1, private(clip=1.0, clipping=clipping))[0]
        assert 0.99 < total.double().norm() <= 1.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_a_gradient_is_within_the_clip_where_products_are_rounded(
    clipping: str, device: str
) -> None:
    """PyTorch can be set to round the factors of products, to TF32 or bfloat16."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    gradients = torch.rand(8, 4096, generator=torch.Generator().manual_seed(0)).to(device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        sums = clipped_sums(gradients, 8, private(clip=1.0, clipping=clipping))
    finally:
        torch.set_float32_matmul_precision(before)
    assert (sums.double().norm(dim=1) <= 1.0).all()


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
@pytest.mark.parametrize("size", [1e3, 1e18, 1e34, 1e36, 1e38])
@pytest.mark.parametrize("clip", [1e-3, 0.1, 10.0])
def test_a_huge_gradient_is_within_the_clip(size: float, clip: float, clipping: str) -> None:
    """In float32: its factor may be so small that it has lost digits; then it counts as zero."""
    gradient = size * torch.rand(1, 1000, generator=torch.Generator().manual_seed(0))
    total = clipped_sums(gradient, 1, private(clip=clip, clipping=clipping))[0]
    norm = float(total.double().norm())
    assert norm == 0 or 0.9999 * clip < norm <= clip
    assert norm or clip / size < 1e-36


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero(bad: float) -> None:
    gradients = torch.ones(3, 4, dtype=torch.float64)
    gradients[1, 2] = bad
    total = clipped_sums(gradients, 1, private(clip=10.0))
    torch.testing.assert_close(total, torch.full((1, 4), 2.0, dtype=torch.float64))


def test_physical_batches_do_not_change_the_sum(tiny: Backbone) -> None:
    model, data = build_model(tiny, "lora"), [data_of(tiny, 20), data_of(tiny, 13)]
    vectors = torch.from_numpy(np.stack([model.parameters.initial(s) for s in (1, 2)]))
    batches = [np.arange(17), np.array([], dtype=np.int64)]
    totals = [
        private_gradients(
            model, vectors, data, batches, [private(clip=0.5, physical_batch=size)] * 2
        )
        for size in (1, 6, 64)
    ]
    for other in totals[1:]:
        torch.testing.assert_close(other, totals[0], rtol=0, atol=1e-12)
    assert totals[0][0].any()
    assert not totals[0][1].any()  # nothing drawn: a gradient of zero, before noise


def test_a_private_cohort_equals_single_clients(tiny: Backbone) -> None:
    model = build_model(tiny, "slash")
    data = [data_of(tiny, count) for count in (12, 24, 16)]
    local = LocalSection(lr=0.02)
    start = np.stack([model.parameters.initial(seed) for seed in range(3)])

    def how(client: int) -> DPSGD:
        return private(1.1, q=(0.5, 0.3, 0.8)[client], steps=client + 2, client=client, clip=0.6)

    together = train_cohort(model, start, data, [0, 1, 2], local, WHEN, [how(c) for c in range(3)])
    for client in range(3):
        alone = train_cohort(
            model, start[client], [data[client]], [client], local, WHEN, [how(client)]
        )
        np.testing.assert_allclose(together.vectors[client], alone.vectors[0], rtol=0, atol=1e-9)
    assert together.steps.tolist() == [2, 3, 4]


@pytest.mark.parametrize("source", ["secure", "seeded"])
def test_noise_has_the_accounted_deviation_and_is_independent_between_clients(
    tiny: Backbone, source: str
) -> None:
    """Empty batches leave nothing but noise: N(0, (sigma C / (q n))^2), independent by client."""
    model, sizes, draws = build_model(tiny, "houlsby"), (10, 20, 40), 40
    data = [data_of(tiny, size) for size in sizes]
    how = [
        replace(
            private(1.5, q=0.4, clip=2.0, client=client),
            noise=SecureNoise()
            if source == "secure"
            else SeededNoise(generator(5, "test-noise", 2, client)),
        )
        for client in range(3)
    ]
    vectors = torch.from_numpy(np.stack([model.parameters.initial(0)] * 3))
    empty = [np.array([], dtype=np.int64)] * 3
    noise = torch.cat(
        [private_gradients(model, vectors, data, empty, how) for _ in range(draws)], dim=1
    ).numpy()
    count = noise.shape[1]
    assert count == draws * model.layout.size > 20_000
    for client, size in enumerate(sizes):
        # The sum of squares over the variance follows the chi-square law of ``count``.
        total = (noise[client] ** 2).sum() / (1.5 * 2.0 / (0.4 * size)) ** 2
        low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], count)
        assert low < total < high
    correlations = np.corrcoef(noise)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(count)


def test_noise_without_a_clip_to_match_is_refused() -> None:
    with pytest.raises(ValueError, match="clip=0"):
        private(1.0)


def test_batch_sizes_follow_the_binomial_law() -> None:
    examples, q, steps = 30, 0.2, 4000
    batches = poisson_batches(private(q=q, steps=steps), examples)
    assert len(batches) == steps
    assert all(len(set(batch.tolist())) == len(batch) for batch in batches)
    sizes = np.bincount([len(batch) for batch in batches], minlength=examples + 1)
    expected = steps * stats.binom.pmf(np.arange(examples + 1), examples, q)
    often = expected >= 5  # where the chi-square test holds; the rest in one bin
    observed = np.append(sizes[often], sizes[~often].sum())
    hoped = np.append(expected[often], expected[~often].sum())
    assert stats.chisquare(observed, hoped).pvalue > 1e-4
    taken = np.bincount(np.concatenate(batches), minlength=examples)
    assert stats.chisquare(taken).pvalue > 1e-4  # each example alike


def test_batches_of_secure_noise_differ_from_run_to_run() -> None:
    how = private(q=0.5, noise=SecureNoise())
    one, other = (np.concatenate(poisson_batches(how, 50)) for _ in range(2))
    assert not np.array_equal(one, other)


def test_clipped_gradients_of_a_linear_layer_match_opacus(tiny: Backbone) -> None:
    """A linear head on fixed states is a linear layer, which Opacus can train, too."""
    from opacus import GradSampleModule

    model, data = build_model(tiny, "linear"), data_of(tiny, 9)
    vector = torch.from_numpy(model.parameters.initial(3))[None]
    rows = np.arange(9)
    pad_id = tiny.tokenizer.pad_token_id
    batch = collate([data], [rows], pad_id, "cpu", model.dtype)
    with torch.no_grad():
        states = model.hidden_states([], batch)[0]
    read = states[torch.arange(9), batch.read].requires_grad_()
    layer = torch.nn.Linear(read.shape[1], 2).double()
    realised = model.realise(vector)
    with torch.no_grad():
        layer.weight.copy_(realised.head_weight[0])
        layer.bias.copy_(realised.head_bias[0])
    sampled = GradSampleModule(layer, loss_reduction="sum")
    torch.nn.functional.cross_entropy(sampled(read), batch.labels, reduction="sum").backward()
    gradients = torch.cat(
        [layer.weight.grad_sample.flatten(1), layer.bias.grad_sample.flatten(1)], dim=1
    )
    clip = float(gradients.norm(dim=1).median())  # cuts some, leaves others
    factors = (clip / (gradients.norm(dim=1) + 1e-6)).clamp(max=1)
    assert factors.min() < 1
    assert factors.max() > 1 - 1e-5
    expected = (factors[:, None] * gradients).sum(0) / 9
    gradients = private_gradients(model, vector, [data], [rows], [private(clip=clip)])
    parts = model.layout.unpack(gradients)
    head_gradient = torch.cat([parts["head.weight"].flatten(), parts["head.bias"].flatten()])
    # Opacus divides by the norm + 1e-6, this package by the norm * (1 + 1e-6).
    torch.testing.assert_close(head_gradient, expected, rtol=0, atol=2e-6)
