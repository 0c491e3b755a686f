"""The task model: a frozen backbone, a method and a head, all trained numbers in task vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeft.backbones import Backbone
from fedpeft.errors import UserError, nearest
from fedpeft.heads import Head
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.modifications.hooks import run
from fedpeft.projection import digest
from fedpeft.projection.operators import Mode, operator
from fedpeft.randomness import generator
from fedpeft.tasks.base import Kind
from fedpeft.tasks.encoding import Batch
from fedpeft.vector import Layout


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


def layout_of(method: Method[Any], head: Head) -> Layout:
    """Return the layout of a method's task vector, the head last."""
    return Layout((*method.parameters().items(), *head.parameters().items()))


class Trainable:
    """Method and head: what a task vector's numbers mean; nothing here needs the backbone.

    Attributes:
        layout: of the task vector [P].
        numpy_dtype: the task vector's dtype by numpy's name.
        personal: which numbers stay at each client, bool [P].
        shared: layout of the others, which travel.

    Raises:
        UserError: ``personal`` names no parameter, or leaves nothing that travels.
    """

    def __init__(
        self, method: Method[Any], head: Head, numpy_dtype: str, personal: Sequence[str] = ()
    ):
        self.method, self.head, self.numpy_dtype = method, head, numpy_dtype
        self.layout = layout_of(method, head)
        own = [name for each in personal for name in self._named(each)]
        self.personal, self.shared = self.layout.places(own), self.layout.without(own)
        if not self.shared.entries:
            raise UserError(
                f"federation.personal = '{','.join(personal)}': all parameters; expected some to "
                f"be shared"
            )

    def _named(self, personal: str) -> list[str]:
        found = self.layout.named(personal)
        if not found:
            names = ["head", *(name for name, _ in self.layout.entries)]
            raise UserError(
                f"federation.personal = '{personal}': no such parameter{nearest(personal, names)}"
            )
        return found

    @property
    def projection_digest(self) -> str:
        """SHA-256 that pins every projection of method and head."""
        return digest([*self.method.projections(), *self.head.projections()])

    def initial(self, seed: int) -> np.ndarray:
        """Return the task vector every client starts from, [P]."""
        draw = generator(seed, "init")
        parameters = {**self.method.initial(draw), **self.head.initial(draw)}
        return self.layout.pack(parameters).astype(self.numpy_dtype)


class TaskModel(Trainable):
    """Runs G task vectors through one frozen backbone in one batch.

    Holds no trained numbers: each call gets the task vectors as a tensor [G, P].
    """

    def __init__(
        self,
        backbone: Backbone,
        method: Method[Any],
        head: Head,
        labels: tuple[str, ...] = (),
        autocast: str = "off",
        projections: Mode = "stored",
    ):
        self.dtype = next(backbone.model.parameters()).dtype
        super().__init__(method, head, str(self.dtype).removeprefix("torch."))
        self.backbone, self.labels = backbone, labels
        self._autocast = autocast
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
        states, longer = self.hidden_states(realised.modifications, batch)
        tags = self.kind == "tags"
        read = states[:, -batch.input_ids.shape[1] :] if tags else self._read(states, longer)
        groups, classes, width = realised.head_weight.shape
        grouped = read.reshape(groups, -1, width)
        scores = grouped @ realised.head_weight.transpose(1, 2) + realised.head_bias[:, None]
        return scores.reshape(*read.shape[:-1], classes)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return each example's loss [N]; see ``Head.losses``."""
        return self.head.losses(outputs, batch.labels)

    def gradients(self, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (gradient [G, P] of each group's mean loss, mean loss [G])."""
        leaf = vectors.detach().requires_grad_()
        losses = self.losses(self.outputs(self.realise(leaf), batch), batch)
        weights = batch.weights.view(len(vectors), -1)
        means = (losses.view_as(weights) * weights).sum(1) / weights.sum(1)
        (gradient,) = torch.autograd.grad(means.sum(), leaf)
        return gradient, means.detach()

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
        losses = self.losses(self.outputs(expanded, batch), batch)
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
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if self.method.shape.types > 1:
            inputs["token_type_ids"] = batch.token_type_ids
        device = self.backbone.device.type
        precision = (
            nullcontext()
            if self._autocast == "off"
            else torch.autocast(device, dtype=getattr(torch, self._autocast))
        )
        with precision:
            states = run(self.backbone.model, self.method.shape.family, prepared, **inputs)
        return states.to(self.dtype), batch

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
