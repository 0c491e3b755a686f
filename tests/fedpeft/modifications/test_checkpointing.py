"""Gradients with blocks that are computed again, against those of one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from models import (
    GROUPED,
    batch_of,
    build_model,
    encoded,
    random_vectors,
    small_backbone,
)
from pairs import UNLIKE_METHODS, covering, fitting
from small_families import CONFIGS, WRITING, small_family, small_language
from torch import Tensor
from written_texts import text_batch, text_model

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.model import TaskModel


def checkpointed(model: TaskModel) -> TaskModel:
    """Return another model of the same backbone and method, with checkpointing."""
    return type(model)(model.backbone, model.parameters, model.labels, checkpointing=True)


@contextmanager
def kept(sizes: list[int]) -> Iterator[None]:
    """Note the numbers of every tensor that a forward pass keeps for the backward pass."""

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield


#: Every method with an example each; other ways with methods that change different things.
WAYS = [
    *((name, "examples") for name in GROUPED),
    *((name, way) for name in UNLIKE_METHODS for way in ("groups", "packed")),
]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_gradients_of_every_method_are_equal_to_the_bit(name: str, way: str) -> None:
    plain = build_model(small_backbone("roberta"), name)
    again = checkpointed(plain)
    vectors = random_vectors(plain, groups=2)
    batch = batch_of(plain.backbone, groups=2, rows=3, packed=way == "packed" and plain.packs)
    for one, other in zip(
        *(
            (m.example_gradients if way == "examples" else m.gradients)(vectors, batch)
            for m in (plain, again)
        ),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert_restored(plain)


@pytest.mark.parametrize(
    ("family", "name"),
    covering(fitting(CONFIGS, ["prefix", "houlsby", "bitfit", "prompt"]), names=["houlsby"]),
)
def test_gradients_of_every_family_are_equal_to_the_bit(family: str, name: str) -> None:
    plain = build_model(small_family(family), name)
    vectors = random_vectors(plain, groups=2)
    batch = batch_of(plain.backbone, groups=2, rows=2)
    (one, _), (other, _) = (m.gradients(vectors, batch) for m in (plain, checkpointed(plain)))
    assert one.abs().sum() > 0
    assert torch.equal(one, other)


@pytest.mark.parametrize("family", WRITING)
def test_gradients_of_texts_are_equal_to_the_bit(family: str) -> None:
    plain = text_model(small_language(family), "lora")
    vectors, batch = random_vectors(plain, 2), text_batch(plain.backbone, [0, 1], [2, 3])
    (one, _), (other, _) = (
        m.example_gradients(vectors, batch) for m in (plain, checkpointed(plain))
    )
    assert torch.equal(one, other)


def assert_restored(model: TaskModel) -> None:
    """Check that no hook and no module of a pass is left in the backbone."""
    for path, module in model.backbone.model.named_modules():
        assert "recomputed" not in path
        assert not module._forward_hooks and not module._forward_pre_hooks, path


def test_only_the_states_between_blocks_are_kept() -> None:
    model = build_model(small_backbone("bert"), "slash")
    batch, vectors = batch_of(model.backbone, 1, 4), random_vectors(model, 1)
    counts = []
    for each in (model, checkpointed(model)):
        sizes: list[int] = []
        realised = each.realise(vectors.requires_grad_())
        with kept(sizes):
            each.outputs(realised, batch)
        counts.append(sum(sizes))
    # A block of BERT keeps more than ten tensors of the size of its input.
    assert counts[1] * 4 < counts[0]


def test_hooks_are_removed_after_an_error() -> None:
    model = checkpointed(build_model(small_backbone("bert"), "slash"))
    realised = model.realise(random_vectors(model, groups=3).requires_grad_())
    with pytest.raises(RuntimeError):  # 4 rows are no 3 groups
        model.outputs(realised, batch_of(model.backbone, 1, 4))
    assert_restored(model)


def test_passes_from_the_first_changed_block() -> None:
    plain = build_model(small_backbone("bert"), "slash", d=12, layers="2")
    texts = encoded(plain.backbone, "synthetic/sentiment", "mask")
    vectors = random_vectors(plain, 1)
    plain.keep_states(1 << 20)
    batch = next(plain.passes(plain.kept.attach([texts]), [np.arange(6)]))
    assert batch.states is not None
    (one, _), (other, _) = (m.gradients(vectors, batch) for m in (plain, checkpointed(plain)))
    assert torch.equal(one, other)


def test_whole_weights_are_refused() -> None:
    with pytest.raises(UserError, match="method 'full' changes whole weights; leave"):
        Experiment.load("", ["engine.checkpointing=true", "method.name=full"])
