"""The task model: a frozen backbone, a method and a head, all trained numbers in task vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedpeft.backbones import Backbone
from fedpeft.below import KeptStates
from fedpeft.heads import Head
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.modifications.hooks import run
from fedpeft.modifications.resuming import Cut, below, first_change, resume
from fedpeft.profiling import phase
from fedpeft.projection.choice import operator
from fedpeft.projection.operators import Mode
from fedpeft.tasks.base import Kind
from fedpeft.tasks.batching import Batch
from fedpeft.tasks.parts import Costs
from fedpeft.trainable import Trainable

#: What a pass costs besides its tokens, in tokens: small products are slow, and calls take time,
#: given as multiplications. Fitted on one CPU core to widths 32 and 384; on a GPU estimated.
SMALL = 22
CALLS = {"cpu": 5e5, "cuda": 2e8, "mps": 2e8}
#: Packed numbers are moved eight times a block, which takes memory's time, not multiplications.
#: With 13, as reckoned, MiniLM trained slower on texts of similar length than without packing.
MOVES = 30


def _move_gradient(total: Tensor, leaf: Tensor) -> None:
    total += leaf.grad
    leaf.grad = None


@dataclass(frozen=True)
class Realised:
    """What task vectors become before the backbone runs; leading axis G everywhere."""

    modifications: list[Modification]
    head_weight: Tensor  # [G, C, width]
    head_bias: Tensor  # [G, C]

    def map(self, change: Any) -> Realised:
        """Return a copy with ``change`` done to each tensor."""
        return Realised(
            [modification.map(change) for modification in self.modifications],
            change(self.head_weight),
            change(self.head_bias),
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors in a fixed order."""
        found = [t for modification in self.modifications for t in modification.tensors().values()]
        return [*found, self.head_weight, self.head_bias]


class TaskModel(Trainable):
    """Runs G task vectors through one frozen backbone in one batch.

    Holds no trained numbers: each call gets the task vectors as a tensor [G, P].

    Attributes:
        kept: the states below the first change of texts that come again.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: Method[Any],
        head: Head,
        labels: tuple[str, ...] = (),
        autocast: str = "off",
        projections: Mode = "stored",
        cache: int = 0,
    ):
        self.dtype = next(backbone.model.parameters()).dtype
        super().__init__(method, head, str(self.dtype).removeprefix("torch."))
        self.backbone, self.labels = backbone, labels
        self._autocast = autocast
        self.kept = KeptStates(self, cache)
        self._of_method, self._of_head = (
            [operator(each, backbone.device, self.dtype, projections) for each in fixed]
            for fixed in (method.projections(), head.projections())
        )

    @property
    def kind(self) -> Kind:
        """What the head predicts."""
        return self.head.kind

    @property
    def classes(self) -> int:
        """Number of the head's outputs."""
        return self.head.classes

    def realise(self, vectors: Tensor) -> Realised:
        """Turn task vectors [G, P] into modifications and heads.

        Raises:
            ValueError: several vectors with a method that changes the weights themselves.
        """
        return self.realise_parameters(self.layout.unpack(vectors))

    def realise_parameters(self, parameters: Mapping[str, Tensor]) -> Realised:
        """Do the same with the vectors' parts, ``name -> [G, *shape]``; see ``realise``."""
        groups = len(next(iter(parameters.values())))
        if groups != 1 and not self.method.grouped:
            name = type(self.method).__name__
            raise ValueError(f"{name} changes whole weights: one task vector, not {groups}")
        modifications = self.method.realise(parameters, self._of_method)
        return Realised(modifications, *self.head.realise(parameters, self._of_head))

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return what the head says of a batch ordered in the G groups of ``realised``.

        Logits [N, C] or scores [N, 1]; for tags logits of every token, [N, T, C].
        """
        read = self._representation(realised.modifications, batch)
        groups, classes, width = realised.head_weight.shape
        grouped = read.reshape(groups, -1, width)
        scores = grouped @ realised.head_weight.transpose(1, 2) + realised.head_bias[:, None]
        return scores.reshape(*read.shape[:-1], classes)

    def _representation(self, modifications: Sequence[Modification], batch: Batch) -> Tensor:
        """Return what the head reads: [N, width], or of every token, [N, T, width]."""
        if batch.below and self.ends_below:
            return batch.below[0] if self.kind == "tags" else batch.below[0][:, 0]
        states, longer = self.hidden_states(modifications, batch)
        if self.kind == "tags":
            return states[:, -batch.input_ids.shape[1] :]
        return self._read(states, longer)

    @cached_property
    def _modifications(self) -> list[Modification]:
        """What the method changes; the numbers are of no use."""
        with torch.no_grad():
            zeros = torch.zeros(1, self.layout.size, dtype=self.dtype, device=self.backbone.device)
            return self.realise(zeros).modifications

    @cached_property
    def cut(self) -> Cut | None:
        """Where the first change is, so that what lies below is the same for all task vectors."""
        if not self.method.grouped:
            return None  # it changes whole weights
        return first_change(self._modifications, self.method.shape.layers)

    @property
    def ends_below(self) -> bool:
        """Whether the whole network lies below the first change: only the head is trained."""
        return self.cut is not None and self.cut.place == "end"

    @cached_property
    def packs(self) -> bool:
        """Whether texts pass without their padding: not where tokens are added to them."""
        return not (self.method.grouped and any(m.adds_tokens for m in self._modifications))

    def below(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return what lies below the first change, each [N, T, width].

        Of a method without any change it is what the head reads; of texts then [N, 1, width].

        Raises:
            ValueError: the first change is at the embeddings or of the weights.
        """
        if self.cut is None:
            raise ValueError("the method changes the embeddings or the weights: nothing is below")
        with torch.no_grad(), self._precision():
            found = below(self.backbone.model, self.cut, **self._inputs(batch))
        if self.cut.place != "end":
            return found
        states = found[0].to(self.dtype)
        return (states if self.kind == "tags" else self._read(states, batch)[:, None],)

    @property
    def costs(self) -> Costs:
        """What passes cost besides their tokens."""
        calls, width = CALLS[self.backbone.device.type], self.method.shape.width
        each = SMALL + (calls + self.layout.size) / width**2
        return Costs(each, calls / 2 / width**2, MOVES / width)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return each example's loss [N]; see ``Head.losses``."""
        return self.head.losses(outputs, batch.labels)

    def gradients(
        self,
        vectors: Tensor,
        batch: Batch,
        sizes: Tensor | None = None,
        total: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return (gradient [G, P] of each group's mean loss, mean loss [G]).

        Args:
            vectors: task vectors [G, P].
            batch: in G groups.
            sizes: [G]; of a part of a larger batch, the examples of all of it. The parts' results
                then add up to those of the whole.
            total: [G, P], to which the gradient is added; else it is a new tensor.
        """
        total = torch.zeros_like(vectors) if total is None else total
        parts = self.layout.unpack(vectors.detach())
        for part, own in zip(parts.values(), self.layout.unpack(total).values(), strict=True):
            # Added as soon as it is known, and not kept: all of `full` are as large as the backbone
            part.requires_grad_().register_post_accumulate_grad_hook(partial(_move_gradient, own))
        with phase("forward"):
            losses = self.losses(self.outputs(self.realise_parameters(parts), batch), batch)
            weights = batch.weights.view(len(vectors), -1)
            sizes = weights.sum(1) if sizes is None else sizes
            means = (losses.view_as(weights) * weights).sum(1) / sizes
        with phase("backward"):
            means.sum().backward()
        return total, means.detach()

    def example_gradients(self, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (gradient [N, P] of each example's own loss, loss [N]).

        The realised modifications are copied once per example, so one backward leaves each
        example's gradient in its own copy; ``realise`` itself is differentiated row by row
        (its vector-Jacobian product), never through the backbone.

        Raises:
            ValueError: a method that changes the weights themselves, which are too large to copy;
                ``privacy.whole_weights`` has another way.
        """
        if not self.method.grouped:
            name = type(self.method).__name__
            raise ValueError(f"{name} changes whole weights: no copies of them for each example")
        groups, rows = len(vectors), len(batch.read) // len(vectors)
        start = vectors.detach()
        expanded = self.realise(start).map(
            lambda tensor: tensor.repeat_interleave(rows, dim=0).requires_grad_()
        )
        with phase("forward"):
            losses = self.losses(self.outputs(expanded, batch), batch)
        with phase("backward"):
            found = torch.autograd.grad((losses * batch.weights).sum(), expanded.tensors())
        losses = losses.detach()
        del expanded  # as large as the gradients, and no longer needed
        # One cotangent of ``realise`` for each of the rows of a group.
        cotangents = [
            gradient.view(groups, rows, *gradient.shape[1:]).transpose(0, 1) for gradient in found
        ]
        _, pull_back = torch.func.vjp(lambda one: self.realise(one).tensors(), start)
        (gradients,) = torch.func.vmap(pull_back)(cotangents)  # [rows, G, P]
        return gradients.transpose(0, 1).reshape(len(losses), -1), losses

    def hidden_states(
        self, modifications: Sequence[Modification], batch: Batch
    ) -> tuple[Tensor, Batch]:
        """Run the backbone: last hidden states [N, k + T', width], and the batch it saw.

        k is the length of a prompt in front; T' is T and the tokens added inside the texts.
        """
        mask_id = self.backbone.tokenizer.mask_token_id
        prepared = []
        for modification in modifications:
            ready, batch = modification.prepare(batch, -1 if mask_id is None else mask_id)
            prepared.append(ready)
        family, model = self.method.shape.family, self.backbone.model
        with self._precision():
            if batch.below and self.cut:
                mask, packing = batch.attention_mask, batch.packing
                states = resume(model, family, prepared, self.cut, batch.below, mask, packing)
            else:
                states = run(model, family, prepared, batch.packing, **self._inputs(batch))
        return states.to(self.dtype), batch

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return what the backbone's forward pass is given of a batch."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if self.method.shape.types > 1:
            inputs["token_type_ids"] = batch.token_type_ids
        return inputs

    def _precision(self) -> AbstractContextManager[Any]:
        """Return the context of a pass through the backbone."""
        if self._autocast == "off":
            return nullcontext()
        return torch.autocast(self.backbone.device.type, dtype=getattr(torch, self._autocast))

    def _read(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the representation the head reads, [N, width]."""
        tokens = batch.input_ids.shape[1]
        offset = self.method.read_offset(states.shape[1] - tokens)
        at = (batch.read.clamp(min=0) + offset)[:, None, None].expand(-1, 1, states.shape[2])
        read = states.gather(1, at)[:, 0]
        if (batch.read >= 0).all():
            return read
        mask = batch.attention_mask[:, -tokens:, None].to(states.dtype)
        mean = (states[:, -tokens:] * mask).sum(1) / mask.sum(1)
        return torch.where((batch.read >= 0)[:, None], read, mean)
