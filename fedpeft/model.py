"""The task model: a frozen backbone, a method and a head, all trained numbers in task vectors."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones import Backbone
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification, applied, prompt_length
from fedpeft.projection import digest
from fedpeft.randomness import generator
from fedpeft.tasks.base import Kind
from fedpeft.tasks.encoding import Batch
from fedpeft.vector import Layout

HEAD_STD = 0.02  # Gupta et al. 2023, released code: weights N(0, 0.02), bias 0


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


def layout_of(method: Method[Any], classes: int) -> Layout:
    """Return the layout of a method's task vector with a linear head for ``classes`` outputs."""
    width = method.shape.width
    entries = [*method.parameters().items()]
    entries += [("head.weight", (classes, width)), ("head.bias", (classes,))]
    return Layout(tuple(entries))


class TaskModel:
    """Runs G task vectors through one frozen backbone in one batch.

    Holds no trained numbers: each call gets the task vectors as a tensor [G, P].
    """

    def __init__(
        self, backbone: Backbone, method: Method[Any], classes: int, kind: Kind, autocast: str
    ):
        self.backbone, self.method, self.classes, self.kind = backbone, method, classes, kind
        self.layout = layout_of(method, classes)
        self.dtype = next(backbone.model.parameters()).dtype
        self._autocast = autocast
        self._projections = [
            torch.from_numpy(projection.transposed()).to(backbone.device, self.dtype)
            for projection in method.projections()
        ]

    @property
    def projection_digest(self) -> str:
        """SHA-256 that pins every projection of the method."""
        return digest(self.method.projections())

    @property
    def numpy_dtype(self) -> str:
        """The model's dtype by numpy's name."""
        return str(self.dtype).removeprefix("torch.")

    def initial(self, seed: int) -> np.ndarray:
        """Return the task vector every client starts from, [P] in the model's dtype."""
        draw = generator(seed, "init")
        parameters = self.method.initial(draw)
        for name, shape in self.layout.entries[-2:]:
            is_weight = name == "head.weight"
            parameters[name] = draw.normal(0, HEAD_STD, shape) if is_weight else np.zeros(shape)
        return self.layout.pack(parameters).astype(self.numpy_dtype)

    def realise(self, vectors: Tensor) -> Realised:
        """Turn task vectors [G, P] into modifications and heads."""
        parameters = self.layout.unpack(vectors)
        return Realised(
            self.method.realise(parameters, self._projections),
            parameters["head.weight"],
            parameters["head.bias"],
        )

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return logits or scores [N, C] of a batch ordered in the G groups of ``realised``."""
        states = self._hidden_states(realised.modifications, batch)
        prompts = prompt_length(realised.modifications)
        read = self._read(states, batch, prompts)  # [N, width]
        groups = realised.head_weight.shape[0]
        grouped = read.view(groups, -1, read.shape[1])
        scores = grouped @ realised.head_weight.transpose(1, 2) + realised.head_bias[:, None]
        return scores.reshape(read.shape[0], -1)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return each example's loss [N]: cross entropy, or squared error for a score."""
        if self.kind == "score":
            return (outputs[:, 0] - batch.labels) ** 2
        return functional.cross_entropy(outputs, batch.labels, reduction="none")

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
        """
        groups, rows = len(vectors), len(batch.read) // len(vectors)
        start = vectors.detach()
        expanded = self.realise(start).map(
            lambda tensor: tensor.repeat_interleave(rows, dim=0).requires_grad_()
        )
        losses = self.losses(self.outputs(expanded, batch), batch)
        found = torch.autograd.grad((losses * batch.weights).sum(), expanded.tensors())
        # One cotangent of ``realise`` for each of the rows of a group.
        cotangents = [
            gradient.view(groups, rows, *gradient.shape[1:]).transpose(0, 1) for gradient in found
        ]
        _, pull_back = torch.func.vjp(lambda one: self.realise(one).tensors(), start)
        (gradients,) = torch.func.vmap(pull_back)(cotangents)  # [rows, G, P]
        return gradients.transpose(0, 1).reshape(len(losses), -1), losses.detach()

    def _hidden_states(self, modifications: list[Modification], batch: Batch) -> Tensor:
        """Run the backbone; return the last hidden states [N, k + T, width]."""
        prompts = prompt_length(modifications)
        mask = functional.pad(batch.attention_mask, (prompts, 0), value=1)
        extra = {}
        if getattr(self.backbone.model.config, "type_vocab_size", 1) > 1:
            extra["token_type_ids"] = batch.token_type_ids
        device = self.backbone.device.type
        precision = (
            nullcontext()
            if self._autocast == "off"
            else torch.autocast(device, dtype=getattr(torch, self._autocast))
        )
        with precision, applied(self.backbone.model, self.method.shape.family, modifications):
            result = self.backbone.model(input_ids=batch.input_ids, attention_mask=mask, **extra)
        return result.last_hidden_state.to(self.dtype)

    def _read(self, states: Tensor, batch: Batch, prompts: int) -> Tensor:
        """Return the representation the head reads, [N, width]."""
        offset = self.method.read_offset(prompts)
        at = (batch.read.clamp(min=0) + offset)[:, None, None].expand(-1, 1, states.shape[2])
        read = states.gather(1, at)[:, 0]
        if (batch.read >= 0).all():
            return read
        mask = batch.attention_mask[:, :, None].to(states.dtype)
        mean = (states[:, prompts:] * mask).sum(1) / mask.sum(1)
        return torch.where((batch.read >= 0)[:, None], read, mean)
