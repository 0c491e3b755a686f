"""Local training against a loop in plain PyTorch, and a cohort against single clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from models import GROUPED, METHODS, build_model, encoded

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import batches, collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.optimizers import HeadRate
from fedpeft.randomness import generator
from fedpeft.tasks.metrics import examples_of
from fedpeft.training import CohortResult, Limit, When, evaluate, train_cohort

WHEN = When(seed=5, round=2, rounds=4)
SIZES = [9, 20, 4]  # ragged: 3, 5 and 1 steps of 4 examples


def clients_of(examples: Encoded, sizes: Sequence[int]) -> list[Encoded]:
    ends = np.cumsum([0, *sizes])
    return [examples.select(np.arange(a, b)) for a, b in pairwise(ends)]


def plain_loop(
    model: TaskModel, start: np.ndarray, data: Encoded, client: int, local: LocalSection
) -> np.ndarray:
    """Train one client with torch.optim and autograd through everything."""
    vector = torch.from_numpy(start.copy())[None].requires_grad_()
    begin = vector.detach().clone()
    optimizer: torch.optim.Optimizer
    if local.optimizer == "adamw":
        optimizer = torch.optim.AdamW([vector], lr=local.lr, weight_decay=local.weight_decay)
    else:
        optimizer = torch.optim.SGD([vector], lr=local.lr)
    draw = generator(WHEN.seed, "batches", WHEN.round, client)
    plan = [
        rows for _ in range(local.epochs) for rows in batches(data.lengths, local.batch_size, draw)
    ]
    for step, rows in enumerate(plan):
        batch = collate([data], [rows], model.backbone.tokenizer.pad_token_id, "cpu", model.dtype)
        loss = model.losses(model.outputs(model.realise(vector), batch), batch).mean()
        loss = loss + local.proximal_mu / 2 * ((vector - begin) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        if local.max_grad_norm:
            torch.nn.utils.clip_grad_norm_([vector], local.max_grad_norm)
        share = (WHEN.round - 1 + step / len(plan)) / WHEN.rounds
        optimizer.param_groups[0]["lr"] = local.lr * (1 - share)
        optimizer.step()
    return vector.detach().numpy()[0]


@pytest.mark.parametrize("name", METHODS)
def test_one_client_is_trained_as_by_a_plain_loop(tiny: Backbone, name: str) -> None:
    model = build_model(tiny, name)
    data = encoded(tiny, "synthetic/sentiment", "mask", 22)
    local = LocalSection(lr=0.02, epochs=2, batch_size=4, weight_decay=0.1, proximal_mu=0.3)
    if name in ("bitfit", "full"):
        # The key's bias has no gradient but rounding errors, which Adam would make large.
        local = LocalSection(optimizer="sgd", lr=0.5, epochs=2, batch_size=4, proximal_mu=0.3)
    start = model.parameters.initial(0)
    expected = plain_loop(model, start, data, 7, local)
    result = train_cohort(model, start, [data], [7], local, WHEN)
    assert result.steps.tolist() == [12]
    np.testing.assert_allclose(result.vectors[0], expected, rtol=0, atol=1e-10)
    assert np.abs(expected - start).max() > 0.01


@pytest.mark.parametrize("name", GROUPED)
def test_a_ragged_cohort_equals_single_clients(tiny: Backbone, name: str) -> None:
    model = build_model(tiny, name)
    data = clients_of(encoded(tiny, "synthetic/sentiment", "mask", sum(SIZES)), SIZES)
    local = LocalSection(lr=0.02, batch_size=4)
    if name == "bitfit":  # as above
        local = LocalSection(optimizer="sgd", lr=0.5, batch_size=4)
    start = np.stack([model.parameters.initial(seed) for seed in range(3)])
    together = train_cohort(model, start, data, [4, 8, 2], local, WHEN)
    assert together.steps.tolist() == [3, 5, 1]
    for k, client in enumerate([4, 8, 2]):
        alone = train_cohort(model, start[k], [data[k]], [client], local, WHEN)
        np.testing.assert_allclose(together.vectors[k], alone.vectors[0], rtol=0, atol=1e-11)
        assert together.losses[k] == pytest.approx(alone.losses[0], abs=1e-11)


def test_a_client_with_a_steep_head_is_slow_also_in_a_cohort(tiny: Backbone) -> None:
    model = build_model(tiny, "slash")
    data = clients_of(encoded(tiny, "synthetic/sentiment", "mask", sum(SIZES)), SIZES)
    local, count = LocalSection(lr=0.02, batch_size=4), model.layout.head_size
    start = np.stack([model.parameters.initial(seed) for seed in range(3)])
    start[1, -count:] *= 1000
    head = HeadRate(count, 0.02, steepness=2.0)
    together = train_cohort(model, start, data, [4, 8, 2], local, WHEN, head=head)
    for k, client in enumerate([4, 8, 2]):
        alone = train_cohort(model, start[k], [data[k]], [client], local, WHEN, head=head)
        np.testing.assert_allclose(together.vectors[k], alone.vectors[0], rtol=0, atol=1e-11)
    pace = head.pace(model.head_weights(torch.from_numpy(start[1:2]))[0])
    moved = np.abs(together.vectors - start)[:, :-count].max(1)
    assert pace < 0.01
    assert moved[1] < 10 * pace * min(moved[0], moved[2])


def test_steps_replace_epochs(tiny: Backbone) -> None:
    model = build_model(tiny, "linear")
    data = encoded(tiny, "synthetic/sentiment", "mask", 10)
    local = LocalSection(lr=0.02, batch_size=4, steps=8)  # an epoch has 3
    assert train_cohort(
        model, model.parameters.initial(0), [data], [0], local, WHEN
    ).steps.tolist() == [8]


def test_clients_stop_at_their_limit(tiny: Backbone) -> None:
    model = build_model(tiny, "slash")
    data = clients_of(encoded(tiny, "synthetic/sentiment", "mask", sum(SIZES)), SIZES)
    local = LocalSection(lr=0.02, batch_size=4, schedule="constant")
    start = model.parameters.initial(0)

    def train(clients: list[int], limit: Limit | None) -> CohortResult:
        texts = [data[client] for client in clients]
        return train_cohort(model, start, texts, clients, local, WHEN, limit=limit)

    assert train([0, 1, 2], None).steps.tolist() == [3, 5, 1]
    limited = train([0, 1, 2], Limit(steps=[2, 9, 1]))
    assert limited.steps.tolist() == [2, 5, 1]
    # With a constant rate, the first steps of a longer training.
    fewer = local.model_copy(update={"steps": 2})
    short = train_cohort(model, start, [data[0]], [0], fewer, WHEN)
    np.testing.assert_allclose(limited.vectors[0], short.vectors[0], rtol=0, atol=1e-11)
    assert limited.losses[0] == pytest.approx(short.losses[0])
    timed = train([0, 1], Limit(seconds=1e-9))
    assert timed.steps.tolist() == [1, 1]
    assert np.isfinite(timed.losses).all()
    assert not np.array_equal(timed.vectors[0], start)


def test_training_depends_on_seed_round_and_client(tiny: Backbone) -> None:
    model = build_model(tiny, "slash")
    data = encoded(tiny, "synthetic/sentiment", "mask", 16)
    local = LocalSection(lr=0.02, batch_size=4, schedule="constant")

    def run(client: int, when: When) -> bytes:
        return train_cohort(
            model, model.parameters.initial(0), [data], [client], local, when
        ).vectors.tobytes()

    results = {
        run(0, When(5, 2, 4)),
        run(1, When(5, 2, 4)),
        run(0, When(6, 2, 4)),
        run(0, When(5, 3, 4)),
    }
    assert len(results) == 4
    assert run(0, When(5, 2, 4)) == run(0, When(5, 2, 4))


def test_a_client_can_learn_its_examples(tiny: Backbone) -> None:
    model = build_model(tiny, "lora", rank=4)
    data = encoded(tiny, "synthetic/sentiment", "mask", 64)
    local = LocalSection(lr=0.01, epochs=30, schedule="constant")
    trained = train_cohort(model, model.parameters.initial(0), [data], [0], local, WHEN)
    before = evaluate(model, model.parameters.initial(0), data).loss_sum
    assert evaluate(model, trained.vectors[0], data).loss_sum < 0.1 * before


def test_evaluation_keeps_the_order_of_the_examples(tiny: Backbone) -> None:
    model = build_model(tiny, "slash", classes=3)
    data = encoded(tiny, "synthetic/inference", "cls", 70)
    vector = model.parameters.initial(3)
    result = evaluate(model, vector, data)
    losses = []
    for row in range(len(data)):
        batch = collate(
            [data], [np.array([row])], model.backbone.tokenizer.pad_token_id, "cpu", model.dtype
        )
        outputs = model.outputs(model.realise(torch.from_numpy(vector)[None]), batch)
        np.testing.assert_allclose(result.outputs[row], outputs[0].detach(), atol=1e-10)
        losses.append(float(model.losses(outputs, batch)))
    assert result.loss_sum == pytest.approx(sum(losses))
    assert examples_of(result.statistics, "classes") == 70
