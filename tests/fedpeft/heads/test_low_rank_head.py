"""Weights that are a product of two thin matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import build_model, random_vectors, small_backbone, task_model

from fedpeft.errors import UserError
from fedpeft.heads import Head, LowRank


def test_a_low_rank_head_is_its_product() -> None:
    backbone = small_backbone("bert")
    like = build_model(backbone, "slash")
    model = task_model(backbone, like.method, Head("classes", LowRank(5, 24, 2)))
    assert model.layout.head_size == 2 * (5 + 24) + 5
    vectors = random_vectors(model, 3)
    parameters, realised = model.layout.unpack(vectors), model.realise(vectors)
    for group in range(3):
        expected = parameters["head.a"][group] @ parameters["head.b"][group]
        torch.testing.assert_close(realised.head_weight[group], expected, rtol=0, atol=1e-12)


def test_the_weights_start_at_zero_and_both_factors_learn() -> None:
    """Were both 0, neither would ever have a gradient."""
    start = LowRank(150, 384, 16).initial(np.random.default_rng(0))
    assert not start["head.a"].any()
    lengths = np.linalg.norm(start["head.b"], axis=1)
    np.testing.assert_allclose(lengths, 1, atol=0.15)


def test_a_rank_that_saves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"head.rank = 3: expected at most 2, .* 3 outputs"):
        LowRank(3, 24, 3)
    assert LowRank(3, 24, 2).rank == 2
