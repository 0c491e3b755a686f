"""The task model: a frozen backbone, a method and a head, all trained numbers in task vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedpeft.backbones.loading import Backbone, in_float32
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.encoded import Encoded
from fedpeft.batches.kept import KeptStates
from fedpeft.batches.passes import parts_by_length, pass_costs, passes_of
from fedpeft.modifications import Modification
from fedpeft.modifications.encoder import Encoder, first_changed_block
from fedpeft.moving import to_array
from fedpeft.parameters import Realised, TaskParameters
from fedpeft.profiling import phase
from fedpeft.projection.operators import Mode
from fedpeft.realising import Realiser


class TaskModel:
    """Runs G task vectors through one frozen backbone in one batch.

    Holds no trained parameters: each call gets the task vectors as a tensor [G, P].

    Attributes:
        first_block: index of the first block that the method changes, or the number of blocks if it
            changes none; 0 if the backbone cannot start a pass at that block.
        adds_tokens: whether the method adds tokens to a text.
        packs: whether batches are packed to save padding; False if the method adds tokens or the
            backbone cannot pass packed texts.
        costs: costs of a pass, which decide how a batch is cut and packed.
        kept: cache of the hidden states that enter ``first_block``.
    """

    def __init__(
        self,
        backbone: Backbone,
        parameters: TaskParameters,
        labels: tuple[str, ...] = (),
        autocast: str = "off",
        projections: Mode = "stored",
        cache: int = 0,
        checkpointing: bool = False,
    ):
        self.backbone, self.parameters, self.labels = backbone, parameters, labels
        self.method, self.head, self.layout = parameters.method, parameters.head, parameters.layout
        self.dtype: torch.dtype = backbone.dtype
        self._encoder = Encoder(backbone, autocast, checkpointing, self.method.grouped)
        self._realise = Realiser(parameters, backbone, projections)
        shape, changes = self.method.shape, self._example_modifications()
        first = first_changed_block(changes, shape.layers) if self.method.grouped else 0
        # Other families start at their first block, unless only the head is trained.
        self.first_block = first if shape.sites.resumes or first == shape.layers else 0
        self.adds_tokens = any(modification.adds_tokens for modification in changes)
        self.packs = shape.sites.packs and not self.adds_tokens
        self.costs = pass_costs(
            backbone.device.type, shape.width, self.layout.size, self._encoder.in_16_bits
        )
        self.keep_states(cache)

    def in_float32(self) -> Self:
        """Return the model with frozen weights in float32, which keep their values."""
        backbone = in_float32(self.backbone)
        same = backbone is self.backbone
        return self if same else type(self)(backbone, self.parameters, self.labels)

    def realise(self, vectors: Tensor) -> Realised:
        """Turn task vectors [G, P] into modifications and heads.

        Raises:
            ValueError: several vectors with a method that changes whole weights.
        """
        return self.realise_parameters(self.layout.unpack(vectors))

    def realise_parameters(self, parameters: Mapping[str, Tensor]) -> Realised:
        """Like ``realise``, for unpacked parameters ``name -> [G, *shape]``."""
        groups = len(next(iter(parameters.values())))
        if groups != 1 and not self.method.grouped:
            name = type(self.method).__name__
            raise ValueError(f"{name} changes whole weights: one task vector, not {groups}")
        return self._realise(parameters)

    def head_weights(self, vectors: Tensor) -> np.ndarray:
        """Return the head's weights of task vectors [G, P], [G, C, width]."""
        with torch.no_grad():
            return to_array(self._realise.head(self.layout.unpack(vectors))[0])

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The blocks that passes run, of a family with one stack."""
        return self._encoder.blocks

    def hidden_states(
        self, modifications: Sequence[Modification], batch: Batch
    ) -> tuple[Tensor, Batch]:
        """Run the backbone: last hidden states [N, k + T', width], and the batch as it saw it.

        k is the length of a prompt before the text; T' is T and the tokens added inside the text.
        """
        states, batch = self._encoder.run(modifications, batch, self.first_block)
        return states.to(self.dtype), batch

    def representations(self, modifications: Sequence[Modification], batch: Batch) -> Tensor:
        """Return what the head reads: [N, width], or for tags of every token, [N, T, width]."""
        if batch.states is not None and self._keeps_representations:
            return batch.states[:, 0]
        return self._read(*self.hidden_states(modifications, batch))

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return the head's outputs for a batch ordered in the G groups of ``realised``.

        Logits [N, C] or scores [N, 1]; for tags logits of every token, [N, T, C].
        """
        read = self.representations(realised.modifications, batch)
        groups, classes, width = realised.head_weight.shape
        grouped = read.reshape(groups, -1, width)
        scores = grouped @ realised.head_weight.transpose(1, 2) + realised.head_bias[:, None]
        return scores.reshape(*read.shape[:-1], classes)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example, [N]; see ``Head.losses``."""
        return self.head.losses(outputs, batch.labels)

    def mean_losses(self, realised: Realised, batch: Batch, sizes: Tensor | None = None) -> Tensor:
        """Return the mean loss of each group, [G]; see ``gradients`` for ``sizes``."""
        losses = self.losses(self.outputs(realised, batch), batch)
        weights = batch.weights.view(batch.groups, -1)
        sizes = weights.sum(1) if sizes is None else sizes
        return (losses.view_as(weights) * weights).sum(1) / sizes

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
            batch: the examples, in G groups.
            sizes: [G], number of examples of the whole batch if this is a part of it. The results
                of the parts then add up to those of the whole.
            total: tensor [G, P] to add the gradient to; None = a new tensor.
        """
        total = torch.zeros_like(vectors) if total is None else total
        parts = self.layout.unpack(vectors.detach())
        for part, into in zip(parts.values(), self.layout.unpack(total).values(), strict=True):
            # Move each gradient as soon as it is ready: those of `full` are as large as the
            # backbone.
            part.requires_grad_().register_post_accumulate_grad_hook(partial(_move_gradient, into))
        with phase("forward"):
            means = self.mean_losses(self.realise_parameters(parts), batch, sizes)
        with phase("backward"):
            means.sum().backward()
        return total, means.detach()

    def example_gradients(self, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (gradient [N, P] of each example's loss, loss [N]), both times its weight.

        Each example forms a separate group, with a copy of its group's task vector.

        Raises:
            ValueError: the method changes whole weights, which are too large to copy; use
                ``privacy.whole_weights``.
        """
        if not self.method.grouped:
            name = type(self.method).__name__
            raise ValueError(f"{name} changes whole weights: too large to copy per example")
        copies = vectors.repeat_interleave(len(batch.weights) // len(vectors), dim=0)
        alone = replace(batch, groups=len(copies))  # its packing stays that of the groups
        # The mean of a group of weight 0 would be 0 / 0.
        return self.gradients(copies, alone, sizes=torch.ones_like(batch.weights))

    def collate(
        self, data: Sequence[Encoded], rows: Sequence[np.ndarray], packed: bool = False
    ) -> Batch:
        """Return the batch of ``rows[g]`` of ``data[g]`` on the backbone's device."""
        pad_id = self.backbone.pad_id
        return collate(data, rows, pad_id, self.backbone.device, self.dtype, packed)

    def passes(
        self,
        data: Sequence[Encoded],
        batches: Sequence[np.ndarray],
        most: int | None = None,
        packs: bool = True,
    ) -> Iterator[Batch]:
        """Yield the batch of ``batches[g]`` of ``data[g]`` in the passes that cost least.

        They have some rows of each group, at most ``most``, and are packed if the model and
        ``packs`` allow it and it costs less.
        """
        if self.trains_head_only and all(texts.states is not None for texts in data):
            # No text passes through the backbone.
            parts, packed = parts_by_length(data, batches, inf, most), False
        else:
            parts, packed = passes_of(data, batches, self.costs, packs and self.packs, most)
        for rows in parts:
            with phase("data"):
                part = self.collate(data, rows, packed)
            yield part

    def keep_states(self, limit: int) -> None:
        """Start an empty cache of at most ``limit`` bytes for the states of ``states_below``."""
        per_text = self._keeps_representations
        width = self.head.width if per_text else self.method.shape.width
        row_bytes, limit = width * self.dtype.itemsize, limit if self.first_block else 0
        self.kept = KeptStates(
            self.states_below, self.collate, row_bytes, per_text, limit, self.backbone.device
        )

    def states_below(self, batch: Batch) -> Tensor:
        """Return the hidden states that enter the first changed block, [N, T, width].

        If only a head on texts is trained, return the representation it reads, [N, 1, width].
        """
        states = self._encoder.states_before(self.first_block, batch).to(self.dtype)
        return self._read(states, batch)[:, None] if self._keeps_representations else states

    @property
    def trains_head_only(self) -> bool:
        """Whether the method trains only the head."""
        return self.first_block == self.method.shape.layers

    @property
    def _keeps_representations(self) -> bool:
        return self.trains_head_only and self.head.kind != "tags"

    def _read(self, states: Tensor, batch: Batch) -> Tensor:
        added = states.shape[1] - batch.input_ids.shape[1]
        return self.head.read(states, batch, self.method.read_offset(added))

    def _example_modifications(self) -> list[Modification]:
        """Return modifications of a zero vector, to see which blocks the method changes."""
        if not self.method.grouped:
            return []  # realising whole weights takes as much memory as the backbone
        with torch.no_grad():
            zeros = torch.zeros(1, self.layout.size, dtype=self.dtype, device=self.backbone.device)
            return self.realise(zeros).modifications


def _move_gradient(total: Tensor, leaf: Tensor) -> None:
    assert leaf.grad is not None  # the hook runs after it is set
    total += leaf.grad
    leaf.grad = None
