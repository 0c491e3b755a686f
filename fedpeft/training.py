"""Local training of a cohort, and evaluation.

A cohort is K clients trained in one batch: row k of the task vectors [K, P] belongs to client k
and sees only client k's examples, so a cohort equals K single clients up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpeft.model import TaskModel
from fedpeft.optimizers import build_optimizer, clip_rows, learning_rate
from fedpeft.privacy.example import DPSGD, poisson_batches, private_gradients
from fedpeft.profiling import phase
from fedpeft.randomness import generator
from fedpeft.settings import LocalSection
from fedpeft.tasks.batching import Batch, batches, collate
from fedpeft.tasks.encoding import Encoded
from fedpeft.tasks.metrics import statistics, tag_statistics
from fedpeft.tasks.parts import passes_of

EVALUATION_BATCH = 64


@dataclass(frozen=True)
class When:
    """Which round of how many (rounds count from 1), under which seed."""

    seed: int
    round: int
    rounds: int


@dataclass(frozen=True)
class CohortResult:
    """What a cohort learned: task vectors [K, P], mean training loss [K], steps [K]."""

    vectors: np.ndarray
    losses: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """Outputs [n, C] in the order of the examples, summable statistics, summed loss.

    For tags the outputs are those of all tokens, [total, C], aligned with the examples' tokens.
    """

    outputs: np.ndarray
    statistics: np.ndarray
    loss_sum: float


def train_cohort(
    model: TaskModel,
    start: np.ndarray,
    data: Sequence[Encoded],
    clients: Sequence[int],
    local: LocalSection,
    when: When,
    private: Sequence[DPSGD] | None = None,
) -> CohortResult:
    """Train K clients for one round in one batch.

    Args:
        model: the task model they share.
        start: task vector [P] they start from, or one for each client [K, P].
        data: each client's examples.
        clients: each client's id, which its randomness derives from.
        local: how to train.
        when: seed and round.
        private: each client's DP-SGD. What leaves this function is then the vectors alone: the
            losses are NaN, and ``local.max_grad_norm`` gives way to the clipping of examples.
    """
    if private:
        plans = [poisson_batches(p, len(own)) for p, own in zip(private, data, strict=True)]
    else:
        plans = [plan_batches(c, own, local, when) for c, own in zip(clients, data, strict=True)]
    if all(len(own) <= sum(map(len, plan)) for plan, own in zip(plans, data, strict=True)):
        with phase("below"):  # else computing it for all texts would cost more than it saves
            data = model.kept.attach(data)
    # Most steps first: the clients still training are then always the first rows.
    order = sorted(range(len(plans)), key=lambda k: -len(plans[k]))
    steps = np.array([len(plans[k]) for k in order])
    starts = np.broadcast_to(start, (len(plans), model.layout.size))[order]
    vectors = torch.as_tensor(starts).to(model.backbone.device, model.dtype)
    begin = vectors.clone() if local.proximal_mu else vectors  # of many millions for `full`
    optimizer = build_optimizer(local, vectors)
    total = vectors.new_empty(0 if private else vectors.shape)
    max_norm = 0.0 if private else local.max_grad_norm
    history: list[Tensor] = []  # each step's losses, of the clients still training
    for step in range(steps.max(initial=0)):
        rows = int((steps > step).sum())
        theirs = [data[k] for k in order[:rows]]
        batches = [plans[k][step] for k in order[:rows]]
        if private:
            how = [private[k] for k in order[:rows]]
            with phase("DP"):
                gradients = private_gradients(model, vectors[:rows], theirs, batches, how)
            losses = gradients.new_full((rows,), float("nan"))
        else:
            gradients = total[:rows].zero_()
            losses = _add_gradients(model, vectors[:rows], theirs, batches, gradients)
        history.append(losses)
        if local.proximal_mu:  # FedProx (Li et al. 2020, arXiv 1812.06127)
            gradients += local.proximal_mu * (vectors[:rows] - begin[:rows])
        progress = (when.round - 1 + step / steps[:rows]) / when.rounds
        lr = vectors.new_tensor([[learning_rate(local, share)] for share in progress])
        with phase("optimiser"):
            optimizer.step(vectors[:rows], clip_rows(gradients, max_norm), lr)
    return _in_order(order, vectors, history, steps)


def _in_order(
    order: Sequence[int], vectors: Tensor, history: Sequence[Tensor], steps: np.ndarray
) -> CohortResult:
    """Return what was learned in the order of the clients; row k is client order[k]'s."""
    sums = np.zeros(len(steps))
    for losses in history:
        sums[: len(losses)] += losses.cpu().double().numpy()
    trained, back = vectors.cpu().numpy(), np.argsort(order)
    if len(back) > 1:  # else there is nothing to copy, which for `full` takes long
        trained = trained[back]
    return CohortResult(trained, (sums / steps)[back], steps[back])


def _add_gradients(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    total: Tensor,
) -> Tensor:
    """Add the gradient of each client's mean loss over its batch to total [G, P]; return losses."""
    sizes = vectors.new_tensor([len(batch) for batch in batches])
    if model.ends_below and all(own.below for own in data):
        passes, packed = [[*batches]], False  # no text passes at all, only the head is left
    else:
        passes, packed = passes_of(data, batches, model.costs, model.packs)
    pad_id = model.backbone.tokenizer.pad_token_id
    losses = vectors.new_zeros(len(vectors))
    for rows in passes:
        with phase("data"):
            part = collate(data, rows, pad_id, vectors.device, model.dtype, packed)
        losses += model.gradients(vectors, part, sizes, total)[1]
    return losses


def plan_batches(
    client: int, examples: Encoded, local: LocalSection, when: When
) -> list[np.ndarray]:
    """Return the batches (indices into the client's examples) of one client in one round."""
    draw = generator(when.seed, "batches", when.round, client)
    plan: list[np.ndarray] = []
    epochs = 0
    while epochs < local.epochs if not local.steps else len(plan) < local.steps:
        plan += batches(examples.lengths, local.batch_size, draw)
        epochs += 1
    return plan[: local.steps or None]


def evaluate(model: TaskModel, vector: np.ndarray, examples: Encoded) -> Evaluation:
    """Run one task vector [P] over all examples, and measure it against their labels."""
    loss_sum = 0.0

    def add(outputs: Tensor, batch: Batch) -> None:
        nonlocal loss_sum
        loss_sum += float(model.losses(outputs, batch).sum())

    with phase("evaluation"):
        [ready] = model.kept.attach([examples])
        outputs = outputs_of(model, vector, ready, add)
        return Evaluation(outputs, _statistics(model, outputs, examples), loss_sum)


def outputs_of(
    model: TaskModel,
    vector: np.ndarray,
    examples: Encoded,
    seen: Callable[[Tensor, Batch], None] = lambda outputs, batch: None,
) -> np.ndarray:
    """Return logits or scores [n, C] of one task vector [P]; for tags of all tokens, [total, C].

    ``seen`` is called with the outputs of every batch.
    """
    vectors = torch.as_tensor(vector, device=model.backbone.device, dtype=model.dtype)[None]
    count = len(examples.tokens) if examples.per_token else len(examples)
    outputs = np.zeros((count, model.classes))
    with torch.inference_mode():
        realised = model.realise(vectors)
        for rows in batches(examples.lengths, EVALUATION_BATCH, None):
            pad_id = model.backbone.tokenizer.pad_token_id
            batch = collate([examples], [rows], pad_id, vectors.device, model.dtype)
            found = model.outputs(realised, batch)
            seen(found, batch)
            if examples.per_token:
                found, rows = found[batch.attention_mask.bool()], examples.places(rows)
            outputs[rows] = found.cpu().numpy()
    return outputs


def _statistics(model: TaskModel, outputs: np.ndarray, examples: Encoded) -> np.ndarray:
    if examples.per_token:
        return tag_statistics(outputs, examples.labels, examples.lengths, model.labels)
    return statistics(outputs, examples.labels, model.kind)
