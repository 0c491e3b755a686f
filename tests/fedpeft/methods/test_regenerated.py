"""Stored and regenerated projections give the same bits, for any size of pieces."""

from __future__ import annotations

import pytest
import torch
from models import batch_of, build_model, random_vectors, task_model

from fedpeft.backbones.loading import Backbone
from fedpeft.heads import Head, Projected
from fedpeft.methods import REGISTRY
from fedpeft.model import TaskModel
from fedpeft.projection import operators

#: Methods with projections; sizes so that small pieces are several (a Selection is always one).
PROJECTED = [
    ("slash", {"d": 40}),
    ("slash", {"d": 40, "init": "uniform", "position": "intermediate"}),
    ("slash", {"d": 24, "init": "identity"}),
    ("jr_warp", {"d": 40, "length": 2}),
    ("vera", {"rank": 20}),
    ("uni_lora", {"d": 40, "rank": 2}),
    ("said", {"d": 12}),
]
HEAD = 33  # numbers that are projected to the weights of the head


def in_mode(like: TaskModel, mode: operators.Mode) -> TaskModel:
    """Return the same model with stored or regenerated projections, and a projected head."""
    head = Head("classes", Projected(3, like.head.width, HEAD, seed=0))
    return task_model(like.backbone, like.method, head, projections=mode)


def test_every_method_with_projections_has_a_case(small: Backbone) -> None:
    actual = {name for name in REGISTRY if build_model(small, name).method.projections()}
    assert actual == {name for name, _ in PROJECTED}


@pytest.mark.parametrize("piece", [None, 64])
@pytest.mark.parametrize(("name", "settings"), PROJECTED)
def test_stored_and_regenerated_projections_give_the_same_bits(
    small: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    settings: dict[str, object],
    piece: int | None,
) -> None:
    like = build_model(small, name, **settings)
    whole = in_mode(like, "stored")
    if piece:
        monkeypatch.setattr(operators, "PIECE", piece)
    kept, made = in_mode(like, "stored"), in_mode(like, "regenerated")
    groups = 2 if like.method.grouped else 1
    batch, vectors = batch_of(small, groups, 3), random_vectors(kept, groups)
    outputs, expected = (m.outputs(m.realise(vectors), batch) for m in (made, kept))
    assert torch.equal(outputs, expected)
    actual, stored = (m.gradients(vectors, batch)[0] for m in (made, kept))
    assert torch.equal(actual, stored)
    torch.testing.assert_close(actual, whole.gradients(vectors, batch)[0], rtol=0, atol=1e-9)
    if like.method.grouped:
        actual, stored = (m.example_gradients(vectors, batch)[0] for m in (made, kept))
        assert torch.equal(actual, stored)


def test_only_a_stored_projection_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces are several; a regenerated operator holds none of them."""
    from fedpeft.projection import Projection
    from fedpeft.projection.choice import operator
    from fedpeft.projection.fastfood import Fastfood

    monkeypatch.setattr(operators, "PIECE", 64)
    for projection in (Projection(0, "a", 24, 40, "normal"), Fastfood(0, "a", 600, 12)):
        stored, made = (
            operator(projection, torch.device("cpu"), torch.float64, mode)
            for mode in ("stored", "regenerated")
        )
        assert len(stored._kept) > 2 and made._kept is None
