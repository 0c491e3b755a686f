"""Kept states: the same numbers as without, to the bit whatever is kept, and within bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import build_model, encoded

from fedpeft.backbones.loading import Backbone, load_backbone
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.training import When, evaluate, train_cohort

WHEN = When(seed=5, round=2, rounds=4)
LOCAL = LocalSection(lr=0.02, epochs=2, batch_size=4)
ROOM = 1 << 20


def upper(backbone: Backbone, limit: int = ROOM) -> TaskModel:
    """SLaSh on the last block, with a cache."""
    model = build_model(backbone, "slash", d=12, layers=str(backbone.shape.layers - 1))
    model.keep_states(limit)
    return model


def two_clients(backbone: Backbone) -> list[Encoded]:
    examples = encoded(backbone, "synthetic/sentiment", "mean", 30)
    return [examples.select(np.arange(start, start + 15)) for start in (0, 15)]


def bytes_of(texts: Encoded, backbone: Backbone) -> int:
    return len(texts.tokens) * backbone.shape.width * 8


@pytest.mark.parametrize(
    ("name", "settings"),
    [("slash", {"d": 12, "layers": "1"}), *((name, {}) for name in ("linear", "lora", "bitfit"))],
)
def test_training_and_evaluation_are_the_same_with_and_without_kept_states(
    tiny: Backbone, name: str, settings: dict[str, object]
) -> None:
    data = two_clients(tiny)
    without, keeping = (build_model(tiny, name, **settings) for _ in range(2))
    keeping.keep_states(ROOM)
    start, local = without.parameters.initial(0), LOCAL
    if name == "bitfit":  # a key's bias has no gradient but rounding errors
        local = LocalSection(optimizer="sgd", lr=0.5, epochs=2, batch_size=4)
    expected, vectors = (
        [train_cohort(model, start, [texts], [0], local, WHEN).vectors for texts in data]
        for model in (without, keeping)
    )
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-10)
    assert (keeping.kept.size > 0) == (name == "linear" or "layers" in settings)
    assert without.kept.size == 0
    outputs = [evaluate(model, vectors[0][0], data[1]).outputs for model in (keeping, without)]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-10)


def test_kept_states_are_not_computed_again(tiny: Backbone) -> None:
    data, model = two_clients(tiny), upper(tiny)
    [first] = model.kept.attach([data[0]])
    [again] = model.kept.attach([data[0].select(np.arange(15))])  # the same texts, a new object
    assert first.states is not None and first.states is again.states
    assert model.kept.attach(data)[1].states is not first.states


def test_results_do_not_depend_on_which_states_are_kept() -> None:
    """In float32, where another order of the texts would show."""
    backbone = load_backbone("tiny", "cpu", "float32")
    data, model = two_clients(backbone), upper(backbone)
    room = max(texts.states.nbytes for texts in model.kept.attach(data))
    cramped = upper(backbone, room)
    start = model.parameters.initial(0)
    results = set()
    for trained in (model, cramped):
        for _ in range(2):
            train_cohort(trained, start, [data[1]], [1], LOCAL, WHEN)  # drops the other's states
            result = train_cohort(trained, start, [data[0]], [0], LOCAL, WHEN)
            results.add(result.vectors.tobytes())
    assert len(results) == 1


def test_no_more_is_kept_than_the_limit(tiny: Backbone) -> None:
    data = two_clients(tiny)
    sizes = [bytes_of(texts, tiny) for texts in data]
    model = upper(tiny, max(sizes))
    for texts in data:
        assert model.kept.attach([texts])[0].states is not None
        assert 0 < model.kept.size <= max(sizes)
    model = upper(tiny, min(sizes) - 1)
    for texts in data:
        assert model.kept.attach([texts])[0] is texts
    assert model.kept.size == 0


def test_a_cohort_gets_all_states_or_none(tiny: Backbone) -> None:
    data = two_clients(tiny)
    data[1] = data[1].select(np.arange(4))
    model = upper(tiny, 0)
    start = model.parameters.initial(0)
    expected = train_cohort(model, start, data, [0, 1], LOCAL, WHEN).vectors
    for limit in (ROOM, sum(bytes_of(texts, tiny) for texts in data) - 1):
        model.keep_states(limit)
        vectors = train_cohort(model, start, data, [0, 1], LOCAL, WHEN).vectors
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-10)
        assert (model.kept.size > 0) == (limit == ROOM)


def test_clients_trained_in_turns_reuse_kept_states_if_most_fit(tiny: Backbone) -> None:
    examples = encoded(tiny, "synthetic/sentiment", "mean", 40)
    data = [examples.select(np.arange(start, start + 10)) for start in range(0, 40, 10)]
    sizes = [bytes_of(texts, tiny) for texts in data]
    model = upper(tiny, sum(sizes[:3]) + min(sizes) // 2)  # for three of four
    first, again = ([model.kept.attach([texts])[0].states for texts in data] for _ in range(2))
    assert sum(a is b for a, b in zip(first, again, strict=True)) >= 2


def test_states_are_not_computed_for_a_few_steps(tiny: Backbone) -> None:
    model, texts = upper(tiny), two_clients(tiny)[0]
    local = LocalSection(lr=0.02, batch_size=4, steps=2)  # 8 of 15 texts
    train_cohort(model, model.parameters.initial(0), [texts], [0], local, WHEN)
    assert model.kept.size == 0


def test_states_for_a_head_depend_on_the_positions_it_reads(tiny: Backbone) -> None:
    model, texts = build_model(tiny, "linear"), two_clients(tiny)[0]
    model.keep_states(ROOM)
    means, firsts = (
        model.kept.attach([texts])[0].states
        for texts in (texts, replace(texts, read=np.zeros_like(texts.read)))
    )
    assert means.shape == firsts.shape == (15, 1, tiny.shape.width)
    assert not torch.equal(means, firsts)


def test_a_client_without_texts_has_no_states(tiny: Backbone) -> None:
    empty = two_clients(tiny)[0].select(np.array([], dtype=np.int64))
    assert upper(tiny).kept.attach([empty])[0] is empty
