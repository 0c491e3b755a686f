"""Weights that are a projection of a short vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import build_model, random_vectors, small_backbone, task_model

from fedpeft.errors import UserError
from fedpeft.heads import Full, Head, Projected
from fedpeft.model import TaskModel


def projected(d: int) -> TaskModel:
    backbone = small_backbone("bert")
    width = backbone.shape.width
    weights = Projected(3, width, d, seed=3) if d else Full(3, width)
    return task_model(backbone, build_model(backbone, "slash").method, Head("classes", weights))


def test_a_projected_head_is_its_projection() -> None:
    """weight = reshape(P z) / sqrt(d)."""
    model = projected(d=20)
    assert dict(model.layout.entries)["head.z"] == (20,)
    assert model.layout.head_size == 20 + 3
    vectors = random_vectors(model, 2)
    parameters, realised = model.layout.unpack(vectors), model.realise(vectors)
    (projection,) = model.head.projections()
    matrix = torch.from_numpy(projection.transposed().T.copy()).double() / 20**0.5
    expected = (parameters["head.z"] @ matrix.T).view(2, 3, 24)
    torch.testing.assert_close(realised.head_weight, expected, rtol=0, atol=1e-12)
    assert torch.equal(realised.head_bias, parameters["head.bias"])
    digests = {other.parameters.projection_digest for other in (model, projected(21), projected(0))}
    assert len(digests) == 3


@pytest.mark.parametrize("d", [0, 512, 3000])
def test_weights_start_with_the_same_deviation(d: int) -> None:
    head = Head("classes", Projected(9, 384, d, seed=0) if d else Full(9, 384))
    start = head.initial(np.random.default_rng(0))
    assert not start["head.bias"].any()
    weight = start["head.weight"] if not d else None
    if weight is None:
        (projection,) = head.projections()
        weight = start["head.z"] @ projection.transposed() / d**0.5
    assert weight.std() == pytest.approx(0.02, rel=0.05)
    assert abs(weight.mean()) < 0.001


@pytest.mark.parametrize("d", [72, 1000])
def test_a_projection_that_saves_nothing_is_refused(d: int) -> None:
    with pytest.raises(UserError, match=f"head.d = {d}: expected less than 72, .* 3 outputs"):
        Projected(3, 24, d, seed=0)
    assert Projected(3, 24, 71, seed=0).d == 71
