"""Local training of a cohort, and evaluation.

A cohort is K clients trained in one batch: row k of the task vectors [K, P] belongs to client k
and sees only client k's examples, so a cohort equals K single clients up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.batch import Batch, batches, evaluation_batch
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.gradients import step_gradients
from fedpeft.model import TaskModel
from fedpeft.moving import to_array, to_device
from fedpeft.optimizers import HeadRate, Steps
from fedpeft.privacy.dpsgd import DPSGD, poisson_batches
from fedpeft.profiling import phase
from fedpeft.randomness import When, generator
from fedpeft.tasks.caveats import counts_of
from fedpeft.tasks.metrics import statistics, tag_statistics
from fedpeft.text.evaluation import evaluate_text
from fedpeft.text.model import TextModel
from fedpeft.zeroth import combined, directions, measure


@dataclass(frozen=True)
class Limit:
    """When clients stop before all steps are done, at the earliest after one.

    Attributes:
        steps: the most steps of each client; None = all.
        seconds: of training.
    """

    steps: Sequence[int] | None = None
    seconds: float = inf

    def reached(self, step: int, passed: float) -> bool:
        """Return whether there is no time for a step after so many that took so many seconds."""
        return step > 0 and passed * (step + 1) / step > self.seconds


@dataclass(frozen=True)
class CohortResult:
    """Results of a cohort of K clients.

    Attributes:
        vectors: task vectors [K, P].
        losses: mean training losses [K].
        steps: numbers of steps [K].
        slopes: slopes of each client's steps, [K, largest number of steps, local.perturbations];
            0 after its last step.
    """

    vectors: np.ndarray
    losses: np.ndarray
    steps: np.ndarray
    slopes: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """Outputs [n, C] in the order of the examples, summable statistics and counts, summed loss.

    The counts are those of ``fedpeft.tasks.caveats``. For tags the outputs are those of all tokens,
    [total, C]; for text there are none.
    """

    outputs: np.ndarray
    statistics: np.ndarray
    loss_sum: float
    counts: np.ndarray


def train_cohort(
    model: TaskModel,
    start: np.ndarray,
    data: Sequence[Encoded],
    clients: Sequence[int],
    local: LocalSection,
    when: When,
    private: Sequence[DPSGD] | None = None,
    fixed: np.ndarray | None = None,
    limit: Limit | None = None,
    head: HeadRate | None = None,
) -> CohortResult:
    """Train K clients for one round in one batch.

    Args:
        model: the task model they share.
        start: initial task vector [P], or one for each client [K, P].
        data: examples of each client.
        clients: id of each client, from which its randomness derives.
        local: how to train.
        when: seed and round.
        private: DP-SGD of each client. The losses are then NaN, because only the vectors may leave,
            and ``local.max_grad_norm`` is ignored, because examples are clipped.
        fixed: True for numbers of a client that stay as they are, bool [K, P].
        limit: when to stop before all steps are done; None = never.
        head: how fast the head moves, and the others beside it; None = all alike.
    """
    plans = _plans(data, clients, local, when, private, limit)
    begun = time.monotonic()
    data = _with_states(model, data, plans, uses=2 * local.perturbations or 1)
    # Most steps first: the clients still training are then always the first rows.
    order = sorted(range(len(plans)), key=lambda k: -len(plans[k]))
    steps = np.array([len(plans[k]) for k in order])
    vectors = _copied(start, order, model)
    kept = None if fixed is None else torch.as_tensor(fixed[order]).to(vectors.device)
    paces = head and head.steepness and [head.pace(row) for row in model.head_weights(vectors)]
    taken = Steps(local, vectors, not private, kept, head, paces or None)
    total = vectors.new_empty(0 if private or local.perturbations else vectors.shape)
    history: list[tuple[Tensor, Tensor]] = []  # losses and slopes of the clients still training
    for step in range(steps.max(initial=0)):
        if limit and limit.reached(step, time.monotonic() - begun):
            steps = np.minimum(steps, step)
            break
        rows = int((steps > step).sum())
        active, current = order[:rows], vectors[:rows]
        texts, batches = [data[k] for k in active], [plans[k][step] for k in active]
        slopes = vectors.new_empty(rows, 0)
        if local.perturbations:
            along = directions(local, when, step, vectors)
            scale = local.perturbation_scale
            slopes, losses = measure(model, current, texts, batches, along, scale)
            gradients = combined(slopes, along)
        else:
            settings = [private[k] for k in active] if private else []
            gradients, losses = step_gradients(
                model, current, texts, batches, total[:rows], settings, kept
            )
        history.append((losses, slopes))
        taken.take(gradients, [when.progress(step, count) for count in steps[:rows]])
    return _in_order(order, vectors, history, steps)


def _copied(start: np.ndarray, order: Sequence[int], model: TaskModel) -> Tensor:
    """Return a copy of task vectors [P] or [K, P] on the model's device, [K, P] in this order.

    Usually all clients start from the server's vector, which then travels to a GPU once.
    """
    rows = start.reshape(-1, start.shape[-1])
    same = all(np.array_equal(rows[0], row) for row in rows[1:])
    moved = to_device(rows[:1] if same else rows, model.backbone.device, model.dtype)
    return moved.repeat(len(order), 1) if same else moved[order]


def _plans(
    data: Sequence[Encoded],
    clients: Sequence[int],
    local: LocalSection,
    when: When,
    private: Sequence[DPSGD] | None,
    limit: Limit | None,
) -> list[list[np.ndarray]]:
    """Return the batches of the steps that each client is to take."""
    if private:
        plans = [poisson_batches(dp, len(own)) for dp, own in zip(private, data, strict=True)]
    else:
        plans = [plan_batches(c, own, local, when) for c, own in zip(clients, data, strict=True)]
    if limit and limit.steps:
        return [plan[:most] for plan, most in zip(plans, limit.steps, strict=True)]
    return plans


def _with_states(
    model: TaskModel, data: Sequence[Encoded], plans: Sequence[Sequence[np.ndarray]], uses: int
) -> Sequence[Encoded]:
    """Return the texts of all clients with the states that the model keeps.

    If a client has more texts than pass through the blocks in its steps, return the texts
    unchanged: computing the states of all would cost more than it saves.

    Args:
        model: the task model.
        data: texts of each client.
        plans: batches of each client.
        uses: how often a step evaluates each text of its batch.
    """
    passed = [uses * sum(map(len, plan)) for plan in plans]
    subset = any(len(texts) > count for texts, count in zip(data, passed, strict=True))
    if subset or not model.first_block:
        return data
    with phase("below"):
        return model.kept.attach(data)


def _in_order(
    order: Sequence[int],
    vectors: Tensor,
    history: Sequence[tuple[Tensor, Tensor]],
    steps: np.ndarray,
) -> CohortResult:
    """Return the results in the order of the clients; row k belongs to client ``order[k]``."""
    sums = np.zeros(len(steps))
    trained, inverse = to_array(vectors), np.argsort(order)
    count = history[0][1].shape[1] if history else 0
    measured = np.zeros((len(steps), len(history), count), trained.dtype)
    for step, (losses, slopes) in enumerate(history):
        sums[: len(losses)] += losses.cpu().double().numpy()
        measured[: len(losses), step] = slopes.cpu().numpy()
    if len(inverse) > 1:  # avoid a copy, which takes long for `full`
        trained = trained[inverse]
    return CohortResult(trained, (sums / steps)[inverse], steps[inverse], measured[inverse])


def plan_batches(
    client: int, examples: Encoded, local: LocalSection, when: When
) -> list[np.ndarray]:
    """Return the batches of a client in a round, as indices into its examples."""
    draw = generator(when.seed, "batches", when.round, client)
    plan: list[np.ndarray] = []
    epochs = 0
    while epochs < local.epochs if not local.steps else len(plan) < local.steps:
        plan += batches(examples.lengths, local.batch_size, draw)
        epochs += 1
    return plan[: local.steps or None]


def evaluate(model: TaskModel, vector: np.ndarray, examples: Encoded) -> Evaluation:
    """Evaluate one task vector [P] on all examples."""
    if isinstance(model, TextModel):
        with phase("evaluation"):
            counts = counts_of(examples, generated=model.search.evaluates)
            return Evaluation(np.zeros((0, 0)), *evaluate_text(model, vector, examples), counts)
    loss_sum = 0.0

    def add(outputs: Tensor, batch: Batch) -> None:
        nonlocal loss_sum
        loss_sum += float(model.losses(outputs, batch).sum())

    with phase("evaluation"):
        outputs = outputs_of(model, vector, model.kept.attach([examples])[0], add)
        statistics = _statistics(model, outputs, examples)
        return Evaluation(outputs, statistics, loss_sum, counts_of(examples))


def outputs_of(
    model: TaskModel,
    vector: np.ndarray,
    examples: Encoded,
    receive: Callable[[Tensor, Batch], None] = lambda outputs, batch: None,
) -> np.ndarray:
    """Return logits or scores [n, C] of one task vector [P]; for tags those of tokens, [total, C].

    Calls ``receive`` with the outputs of each batch.
    """
    vectors = to_device(vector, model.backbone.device, model.dtype)[None]
    count = len(examples.tokens) if examples.per_token else len(examples)
    outputs = np.zeros((count, model.head.classes))
    size = evaluation_batch(examples.lengths, model.backbone.device)
    with torch.inference_mode():
        realised = model.realise(vectors)
        for rows in batches(examples.lengths, size, None):
            batch = model.collate([examples], [rows])
            part = model.outputs(realised, batch)
            receive(part, batch)
            if examples.per_token:
                part, rows = part[batch.attention_mask.bool()], examples.places(rows)
            outputs[rows] = part.cpu().numpy()
    return outputs


def _statistics(model: TaskModel, outputs: np.ndarray, examples: Encoded) -> np.ndarray:
    if examples.per_token:
        lengths, cut = examples.lengths, examples.cut
        return tag_statistics(outputs, examples.labels, lengths, model.labels, cut)
    return statistics(outputs, examples.labels, model.head.kind)
