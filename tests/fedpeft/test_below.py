"""Kept states: the same numbers as without, to the bit whatever is kept, and within bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import METHODS, build_model, encoded

from fedpeft.backbones import Backbone, load_backbone
from fedpeft.below import KeptStates
from fedpeft.model import TaskModel
from fedpeft.settings import LocalSection
from fedpeft.tasks.encoding import Encoded
from fedpeft.training import When, evaluate, train_cohort

WHEN = When(seed=5, round=2, rounds=4)
LOCAL = LocalSection(lr=0.02, epochs=2, batch_size=4)


def keeping(model: TaskModel, most: int) -> TaskModel:
    model.kept = KeptStates(model, most)
    return model


def two_clients(backbone: Backbone) -> list[Encoded]:
    examples = encoded(backbone, "synthetic/sentiment", "mean", 30)
    return [examples.select(np.arange(start, start + 15)) for start in (0, 15)]


@pytest.mark.parametrize("name", METHODS)
def test_training_and_evaluation_are_the_same_with_and_without(tiny: Backbone, name: str) -> None:
    data = two_clients(tiny)
    without, with_it = build_model(tiny, name), keeping(build_model(tiny, name), 1 << 20)
    start = without.initial(0)
    local = LOCAL
    if name in ("bitfit", "full"):  # a key's bias has no gradient but rounding errors
        local = LocalSection(optimizer="sgd", lr=0.5, epochs=2, batch_size=4)
    expected = [train_cohort(without, start, [own], [0], local, WHEN).vectors for own in data]
    found = [train_cohort(with_it, start, [own], [0], local, WHEN).vectors for own in data]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert (with_it.kept.size > 0) == (with_it.cut is not None)
    assert without.kept.size == 0
    outputs = [evaluate(model, found[0][0], data[1]).outputs for model in (with_it, without)]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-10)


def test_what_is_kept_is_not_computed_again(tiny: Backbone) -> None:
    data, model = two_clients(tiny), keeping(build_model(tiny, "slash"), 1 << 20)
    [first] = model.kept.attach([data[0]])
    [again] = model.kept.attach([data[0].select(np.arange(15))])  # the same texts, a new object
    assert [a is b for a, b in zip(first.below, again.below, strict=True)] == [True, True]
    assert model.kept.attach(data)[1].below[0] is not first.below[0]


def test_no_bit_depends_on_what_is_kept() -> None:
    """In float32, where another order of the texts would show."""
    backbone = load_backbone("tiny", "cpu", "float32")
    data = two_clients(backbone)
    model = keeping(build_model(backbone, "slash"), 1 << 20)
    room = max(sum(each.nbytes for each in own.below) for own in model.kept.attach(data))
    cramped = keeping(build_model(backbone, "slash"), room)
    start = model.initial(0)
    results = {
        train_cohort(each, start, [data[0]], [0], LOCAL, When(5, round, 4)).vectors.tobytes()
        for each in (model, cramped)
        for round in (2, 2)
        if [train_cohort(each, start, [data[1]], [1], LOCAL, WHEN)]  # drops the other's states
    }
    assert len(results) == 1


def test_no_more_is_kept_than_there_is_room(tiny: Backbone) -> None:
    data = two_clients(tiny)
    model = build_model(tiny, "slash")
    tokens = [len(own.tokens) for own in data]
    bytes_of = [count * 2 * tiny.shape.width * 8 for count in tokens]
    keeping(model, max(bytes_of))
    for own in data:
        assert model.kept.attach([own])[0].below
        assert model.kept.size <= max(bytes_of)
    keeping(model, min(bytes_of) - 1)
    for own in data:
        assert model.kept.attach([own])[0] is own
    assert model.kept.size == 0


def test_a_cohort_gets_all_states_or_none(tiny: Backbone) -> None:
    data, model = two_clients(tiny), build_model(tiny, "slash")
    data[1] = data[1].select(np.arange(4))
    start, local = model.initial(0), LOCAL
    expected = train_cohort(model, start, data, [0, 1], local, WHEN).vectors
    for most in (1 << 20, sum(len(own.tokens) for own in data) * 2 * tiny.shape.width * 8 - 1):
        keeping(model, most)
        found = train_cohort(model, start, data, [0, 1], local, WHEN).vectors
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
        assert (model.kept.size > 0) == (most == 1 << 20)


def test_clients_that_take_turns_keep_what_there_is_room_for(tiny: Backbone) -> None:
    examples = encoded(tiny, "synthetic/sentiment", "mean", 40)
    data = [examples.select(np.arange(start, start + 10)) for start in range(0, 40, 10)]
    model = keeping(build_model(tiny, "slash"), 1 << 20)
    sizes = [sum(each.nbytes for each in own.below) for own in model.kept.attach(data)]
    keeping(model, sum(sizes[:3]) + min(sizes) // 2)  # for three of four
    first = [model.kept.attach([own])[0].below for own in data]
    again = [model.kept.attach([own])[0].below for own in data]
    assert sum(a is b for a, b in zip(first, again, strict=True)) >= 2


def test_states_are_not_computed_for_a_few_steps(tiny: Backbone) -> None:
    model = keeping(build_model(tiny, "slash"), 1 << 20)
    [own, _], start = two_clients(tiny), model.initial(0)
    local = LocalSection(lr=0.02, batch_size=4, steps=2)  # 8 of 15 texts
    train_cohort(model, start, [own], [0], local, WHEN)
    assert model.kept.size == 0


def test_a_text_keeps_one_representation_where_nothing_changes(tiny: Backbone) -> None:
    model = keeping(build_model(tiny, "linear"), 1 << 20)
    own = two_clients(tiny)[0]
    (states,) = model.kept.attach([own])[0].below
    assert states.shape == (15, 1, tiny.shape.width)
    [found] = model.kept.attach([replace(own, read=np.zeros_like(own.read))])  # the first token
    assert not torch.equal(found.below[0], states)


def test_no_texts_have_no_states(tiny: Backbone) -> None:
    model = keeping(build_model(tiny, "slash"), 1 << 20)
    none = two_clients(tiny)[0].select(np.array([], dtype=np.int64))
    assert model.kept.attach([none])[0] is none
