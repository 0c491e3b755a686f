"""RGP: its gradients against a literal reparametrization, its update against the projection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import batch_of, build_model, encoded, part_of, random_vectors, small_backbone
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.modifications import WeightChange
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import DPSGD, private_gradients
from fedpeft.privacy.noise import SeededNoise
from fedpeft.privacy.rgp import Carriers, carriers_of, power_iteration
from fedpeft.randomness import When, generator
from fedpeft.training import train_cohort

FULL = 1000  # above every width: the carriers span everything


@pytest.fixture(params=["bert", "roberta"])
def small(request: pytest.FixtureRequest) -> Backbone:
    return small_backbone(request.param)


def noise(number: int = 0) -> SeededNoise:
    return SeededNoise(generator(5, "test-rgp", number))


def private(rank: int, sigma: float = 0.0, clip: float = 0.0, physical: int = 8) -> DPSGD:
    return DPSGD(Mechanism(sigma, 1.0, 1), clip, "flat", physical, noise(1), rank=rank)


def orthogonal(number: int) -> tuple[Tensor, Tensor]:
    """L [7, 3] and R [3, 5] whose columns and rows are orthonormal."""
    draw = torch.Generator().manual_seed(number)
    left = torch.linalg.qr(torch.randn(7, 3, generator=draw, dtype=torch.float64))[0]
    return left, torch.linalg.qr(torch.randn(5, 3, generator=draw, dtype=torch.float64))[0].T


def literal(model: TaskModel, vectors: Tensor, batch: Batch, carriers: Carriers) -> Tensor:
    """Gradient [1, Q] of one example's loss with every matrix as L R + constant."""
    leaves = {
        name: [carrier.clone().requires_grad_() for carrier in pair]
        for name, pair in carriers.pairs.items()
    }
    parts = {
        name: part.detach().clone().requires_grad_()
        for name, part in model.layout.unpack(vectors).items()
    }
    realised = model.realise_parameters(parts)
    changes = []
    for change in realised.modifications:
        assert isinstance(change, WeightChange)
        if change.name in leaves:
            left, right = leaves[change.name]
            product = left @ right
            value = product + (change.value[0] - product).detach()
            change = replace(change, value=value[None])
        changes.append(change)
    loss = model.losses(model.outputs(replace(realised, modifications=changes), batch), batch)
    loss.sum().backward()
    pieces = []
    for name, _ in carriers.layout.entries:
        matrix, _, side = name.rpartition(".")
        leaf = leaves[matrix][side == "right"] if side in ("left", "right") else parts[name]
        assert leaf.grad is not None
        pieces.append(leaf.grad.flatten())
    return torch.cat(pieces)


@pytest.mark.parametrize("rank", [1, 4, FULL])
@pytest.mark.parametrize(
    ("task", "classes", "kind", "representation"),
    [
        ("synthetic/sentiment", 2, "classes", "mask"),
        ("synthetic/similarity", 1, "score", "mean"),
        ("synthetic/entities", 9, "tags", "mask"),
    ],
)
def test_gradients_equal_those_of_a_literal_reparametrization_one_by_one(
    small: Backbone, task: str, classes: int, kind: str, representation: str, rank: int
) -> None:
    """In a padded batch with a row that only fills it up."""
    model = build_model(small, "full", classes, kind)  # type: ignore[arg-type]
    batch = batch_of(small, 1, 4, representation, task)
    weights = torch.tensor([1, 0, 1, 1], dtype=torch.float64)
    vectors = random_vectors(model, 1)
    carriers = carriers_of(model, vectors, rank, noise())
    gradients, losses = carriers.example_gradients(model, vectors, replace(batch, weights=weights))
    assert gradients.shape == (4, carriers.layout.size) and not gradients.requires_grad
    for row, weight in enumerate(weights):
        alone = part_of(batch, row, row + 1)
        expected = literal(model, vectors, alone, carriers)
        assert expected.norm() > 1e-3
        torch.testing.assert_close(gradients[row], weight * expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(losses[row], model.gradients(vectors, alone)[1][0])


def test_the_update_is_the_gradient_projected_on_the_carriers(small: Backbone) -> None:
    model, batch = build_model(small, "full"), batch_of(small, 1, 3)
    vectors = random_vectors(model, 1)
    carriers = carriers_of(model, vectors, 3, noise())
    gradients, _ = carriers.example_gradients(model, vectors, batch)
    lifted = model.layout.unpack(carriers.lift(model.layout, gradients.mean(0, keepdim=True)))
    whole = model.layout.unpack(model.gradients(vectors, batch)[0])
    assert len(carriers.pairs) == 6 * 3
    for name, update in lifted.items():
        gradient = whole[name][0]
        if name in carriers.pairs:
            left, right = carriers.pairs[name]
            left, right = left @ left.T, right.T @ right
            rest = gradient - left @ gradient
            expected = left @ gradient + rest @ right
            assert (expected - gradient).norm() > 0.1 * gradient.norm() or "key" in name
        else:
            expected = (
                torch.zeros_like(gradient) if name.endswith("embeddings.weight") else (gradient)
            )
        torch.testing.assert_close(update[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("start", ["pretrained", "changed"])
def test_with_full_rank_and_no_noise_it_is_training_without_privacy(
    small: Backbone, start: str
) -> None:
    """But for the embeddings, which RGP leaves as they are."""
    model = build_model(small, "full")
    data = encoded(small, "synthetic/sentiment", "mask", 6)
    local = LocalSection(optimizer="sgd", lr=0.01, batch_size=6, steps=1, max_grad_norm=0)
    vector = model.parameters.initial(0)
    if start == "changed":
        vector = vector + random_vectors(model, 1)[0].numpy()
    when = When(seed=5, round=2, rounds=4)
    plain = train_cohort(model, vector, [data], [7], local, when).vectors
    trained = train_cohort(model, vector, [data], [7], local, when, [private(FULL)]).vectors
    embeddings = model.layout.places(
        [name for name, _ in model.layout.entries if name.endswith("embeddings.weight")]
    )
    np.testing.assert_array_equal(trained[:, embeddings], vector[None, embeddings])
    assert (plain != vector)[:, embeddings].any()
    assert np.linalg.norm(plain - vector) > 1e-3
    np.testing.assert_allclose(trained[:, ~embeddings], plain[:, ~embeddings], rtol=0, atol=1e-9)


def test_clipping_covers_carriers_and_all_other_parameters_together(small: Backbone) -> None:
    model = build_model(small, "full")
    data = encoded(small, "synthetic/sentiment", "mask", 5)
    vectors = random_vectors(model, 1)
    carriers = carriers_of(model, vectors, 2, noise(1))
    batch = model.collate([data], [np.arange(5)])
    gradients, _ = carriers.example_gradients(model, vectors, batch)
    norms = gradients.norm(dim=1)
    clip = float(norms.median())
    factors = (clip / norms).clamp(max=1)
    assert factors.min() < 0.99
    expected = carriers.lift(model.layout, (factors[:, None] * gradients).mean(0)[None])
    for physical in (5, 2):
        how = private(2, clip=clip, physical=physical)
        clipped = private_gradients(model, vectors, [data], [np.arange(5)], [how])
        torch.testing.assert_close(clipped, expected, rtol=1e-5, atol=1e-7)


def test_noise_has_the_carriers_dimension_and_lies_in_their_span(small: Backbone) -> None:
    """An empty batch leaves only noise: rank at most 2 r in every matrix, none in embeddings."""
    model = build_model(small, "full")
    data = encoded(small, "synthetic/sentiment", "mask", 5)
    vectors, empty = random_vectors(model, 1), np.arange(0)
    how = private(2, sigma=1.5, clip=2.0)
    update = private_gradients(model, vectors, [data], [empty], [how])
    for name, part in model.layout.unpack(update).items():
        if name.endswith("embeddings.weight"):
            assert not part.any()
        elif part.dim() == 3 and not name.startswith("head."):
            assert torch.linalg.matrix_rank(part[0]) == 4
        else:
            assert part.abs().min() > 0
    whole = private(0, sigma=1.5, clip=2.0)
    of_all = private_gradients(model, vectors, [data], [empty], [whole])
    assert update.norm() < 0.6 * of_all.norm()


def test_power_iteration_recovers_a_change_of_low_rank() -> None:
    left, right = orthogonal(0)
    scales = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    found_left, found_right = power_iteration(left @ scales @ right, 3, noise())
    torch.testing.assert_close(found_left @ found_left.T, left @ left.T)
    torch.testing.assert_close(found_right.T @ found_right, right.T @ right)


@pytest.mark.parametrize("change", ["zero", "rank 1"])
def test_carriers_are_orthonormal_where_the_change_has_less_rank(change: str) -> None:
    ones = torch.ones(7, 5, dtype=torch.float64) * (change == "rank 1")
    left, right = power_iteration(ones, 3, noise())
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(left.T @ left, eye)
    torch.testing.assert_close(right @ right.T, eye)
    other, _ = power_iteration(ones, 3, noise(2))
    assert not torch.allclose(left @ left.T, other @ other.T)  # random where nothing is known
    if change == "rank 1":
        torch.testing.assert_close(left @ (left.T @ ones), ones)


def test_the_backbone_is_unchanged(small: Backbone) -> None:
    model, batch = build_model(small, "full"), batch_of(small, 1, 3)
    before = {name: value.clone() for name, value in small.model.state_dict().items()}
    vectors = random_vectors(model, 1)
    carriers_of(model, vectors, 2, noise()).example_gradients(model, vectors, batch)
    after = small.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(module._forward_hooks for module in small.model.modules())
