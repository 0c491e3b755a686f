"""Robust prefix tuning: an extra prefix tuned at test time (Yang and Liu 2022, arXiv 2203.10378).

After training, ``standard_of`` keeps for every block j the principal directions U_j [width, p] of
the representations that correctly classified training examples have behind it. For a batch of new
texts, ``robust_outputs`` adds an extra prefix to the trained one, zero at first, and moves it in a
few steps of Adam so that the batch's representations H_j [N, width] come closer to these
directions (section 3, and the released code):

    minimize  sum over blocks j of  mean of ((H_j - m_j) (I - U_j U_j^T))^2,

where m_j is the mean of the batch. No label of the new texts is needed, and the extra prefix is
forgotten after the batch. The representation is what the head reads: the mask, [CLS] or the mean.

The directions are computed from examples in one place. In a federation each client can compute
them from its own examples; nothing more travels, and differential privacy does not cover them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpeft.backbones.moving import to_device
from fedpeft.batches.batch import EVALUATION_BATCH, Batch, batches
from fedpeft.batches.encoded import Encoded
from fedpeft.errors import UserError
from fedpeft.model import TaskModel
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.parameters import Realised


@dataclass(frozen=True)
class Tuning:
    """How the extra prefix is tuned.

    Attributes:
        steps: steps per batch (released code: 10).
        lr: learning rate of Adam (released code: 0.15 for attacks inside a sentence).
        blocks: number of blocks, from the first, whose representations count; 0 = all.
        batch: texts that share an extra prefix.
    """

    steps: int = 10
    lr: float = 0.15
    blocks: int = 0
    batch: int = EVALUATION_BATCH


@dataclass(frozen=True)
class Standard:
    """Principal directions of the representations of correctly classified examples.

    Attributes:
        directions: U_j [width, p_j] behind each block, orthonormal columns.
        examples: number of correctly classified examples.
    """

    directions: tuple[Tensor, ...]
    examples: int

    def distance(self, states: Sequence[Tensor]) -> Tensor:
        """Return the loss of a batch's representations behind the first blocks, each [N, width].

        With a single text, m_j = 0: its own mean would leave nothing (released code).
        """
        total = states[0].new_zeros(())
        for hidden, along in zip(states, self.directions, strict=False):
            centred = hidden - hidden.mean(0) if len(hidden) > 1 else hidden
            total = total + (centred - (centred @ along) @ along.T).square().mean()
        return total


def standard_of(
    model: TaskModel, vector: np.ndarray, examples: Encoded, share: float = 0.95
) -> Standard:
    """Return the standard of the examples that a task vector [P] classifies correctly.

    Args:
        model: a task model with classes.
        vector: the trained task vector.
        examples: training examples with their labels.
        share: share of the variance that the kept directions explain, in (0, 1].

    Raises:
        UserError: fewer than two examples are classified correctly, or the head does not classify
            texts.
    """
    if model.head.kind != "classes":
        raise UserError(f"a head of kind '{model.head.kind}': robust prefix tuning needs classes")
    kept: list[list[Tensor]] = []
    realised = _realised(model, vector)
    with torch.no_grad(), _recorded(model) as record:
        for rows in batches(examples.lengths, EVALUATION_BATCH, None):
            batch = model.collate([examples], [rows])
            correct = record.outputs(realised, batch).argmax(1) == batch.labels
            kept.append([hidden[correct] for hidden in record.states(batch)])
    behind = [torch.cat(parts) for parts in zip(*kept, strict=True)]
    if len(behind[0]) < 2:
        raise UserError(
            f"{len(behind[0])} of {len(examples)} examples are classified correctly: expected at "
            f"least 2; train longer or give more examples"
        )
    return Standard(tuple(principal(hidden, share) for hidden in behind), len(behind[0]))


def principal(states: Tensor, share: float) -> Tensor:
    """Return the fewest principal directions [width, p] that explain a share of the variance.

    Args:
        states: [n, width], n at least 2.
        share: in (0, 1].
    """
    # float64: the smallest directions of float32 states are rounding errors.
    centred = (states - states.mean(0)).double()
    _, scales, rows = torch.linalg.svd(centred, full_matrices=False)
    explained = scales.square().cumsum(0) / scales.square().sum()
    count = int((explained < share - 1e-12).sum()) + 1
    return rows[:count].T.to(states.dtype)


def robust_outputs(
    model: TaskModel, vector: np.ndarray, examples: Encoded, standard: Standard, tuning: Tuning
) -> np.ndarray:
    """Return logits [n, C] of texts, each batch with an extra prefix of its own.

    Args:
        model: of the method ``prefix``.
        vector: the trained task vector [P].
        examples: the texts; labels are ignored. Texts of similar length share a batch.
        standard: see ``standard_of``.
        tuning: how to tune.

    Raises:
        UserError: the method is another one.
    """
    realised = _realised(model, vector)
    if not all(isinstance(change, KeyValuePrefix) for change in realised.modifications):
        name = model.method.settings.name
        raise UserError(f"method.name = '{name}': robust prefix tuning needs 'prefix'")
    outputs = np.zeros((len(examples), model.head.classes))
    with _recorded(model) as record:
        for rows in batches(examples.lengths, tuning.batch, None):
            batch = model.collate([examples], [rows])
            tuned = tuned_prefix(record, realised, batch, standard, tuning)
            with torch.no_grad():
                outputs[rows] = record.outputs(tuned, batch).cpu().numpy()
    return outputs


def tuned_prefix(
    record: Record, realised: Realised, batch: Batch, standard: Standard, tuning: Tuning
) -> Realised:
    """Return the realised task vector with the extra prefix of one batch."""
    changes = [change for change in realised.modifications if isinstance(change, KeyValuePrefix)]
    extra = [
        torch.zeros_like(tensor, requires_grad=True)
        for change in changes
        for tensor in (change.keys, change.values)
    ]
    optimizer = torch.optim.Adam(extra, tuning.lr)
    blocks = tuning.blocks or len(standard.directions)

    def summed() -> Realised:
        pairs = zip(changes, extra[::2], extra[1::2], strict=True)
        added: list[Modification] = [
            replace(change, keys=change.keys + keys, values=change.values + values)
            for change, keys, values in pairs
        ]
        return replace(realised, modifications=added)

    for _ in range(tuning.steps):
        record.outputs(summed(), batch)
        loss = standard.distance(record.states(batch)[:blocks])
        gradients = torch.autograd.grad(loss, extra, allow_unused=True)
        for tensor, gradient in zip(extra, gradients, strict=True):
            tensor.grad = gradient  # None behind the last block that counts
        optimizer.step()
    with torch.no_grad():
        return summed()


@dataclass(frozen=True)
class Record:
    """Outputs of a model, and the hidden states behind each block in the last pass."""

    model: TaskModel
    hidden: list[Tensor]

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return the head's outputs, and record the hidden states."""
        self.hidden.clear()
        return self.model.outputs(realised, batch)

    def states(self, batch: Batch) -> list[Tensor]:
        """Return the representations [N, width] behind each block in the last pass."""
        read = self.model.head.read
        return [read(hidden.to(self.model.dtype), batch, 0) for hidden in self.hidden]


@contextmanager
def _recorded(model: TaskModel) -> Iterator[Record]:
    record = Record(model, [])
    handles = [
        layer.register_forward_hook(lambda module, given, out: record.hidden.append(out))
        for layer in model.blocks
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _realised(model: TaskModel, vector: np.ndarray) -> Realised:
    vectors = to_device(vector, model.backbone.device, model.dtype)[None]
    with torch.no_grad():
        return model.realise(vectors)
