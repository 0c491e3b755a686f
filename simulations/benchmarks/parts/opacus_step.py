"""DP-SGD steps of one method with Opacus, the reference of the privacy benchmark.

The trained parameters belong to small modules inside a copy of the backbone (``plain_modules``);
Opacus's hooks (``GradSampleModule``) compute per-example gradients, ``DPOptimizer`` clips, adds
noise and steps. Same mathematics as ``fedpeft.privacy.dpsgd``, without its code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import register_grad_sampler
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel
from simulations.benchmarks.parts.plain_modules import (
    METHODS,
    Classifier,
    Prompt,
    PromptShift,
    Shift,
    place,
)


@register_grad_sampler(Shift)
def _shift_samples(
    layer: Shift, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    return {layer.z: backprops.sum(1) @ layer.fixed.T}


@register_grad_sampler([Prompt, PromptShift])
def _prompt_samples(
    layer: Shift, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    return {layer.z: backprops[:, 0] @ layer.fixed.T}


class OpacusStep:
    """DP-SGD steps of one method with clip 1 and noise multiplier 1, AdamW.

    Args:
        model: whose method (one of METHODS) and backbone are rebuilt; the model stays as it is.
        vector: task vector [P] to start from.
        expected: the expected batch.
        lr: learning rate.
    """

    def __init__(self, model: TaskModel, vector: Tensor, expected: int, lr: float):
        encoder = deepcopy(model.backbone.model).requires_grad_(False)
        for module in encoder.modules():  # Opacus requires train(), which would enable dropout
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        trained = METHODS[model.method.settings.name](encoder, model.parameters)
        classifier = Classifier(encoder, model.backbone.shape.width, model.head.classes)
        head = {f"head.{name}": value for name, value in classifier.head.named_parameters()}
        parts = model.layout.unpack(vector[None])
        named = trained | head
        # In the order of the vector; Any because Opacus adds the attribute ``grad_sample``.
        self.parameters: list[Any] = [named[name] for name in parts]
        with torch.no_grad():
            for parameter, part in zip(self.parameters, parts.values(), strict=True):
                parameter.copy_(part[0])
        place(classifier, model.backbone.device)
        self.sampled = GradSampleModule(classifier.train(), loss_reduction="mean")
        self.optimizer = DPOptimizer(
            torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=expected,
        )

    def example_gradients(self, batch: Batch) -> Tensor:
        """Return each example's gradient [N, P], in the order of the task vector."""
        self._backward(batch)
        return torch.cat([parameter.grad_sample.flatten(1) for parameter in self.parameters], dim=1)

    def step(self, batch: Batch) -> None:
        """Run one step."""
        self._backward(batch)
        self.optimizer.step()

    def _backward(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        with _quiet():
            functional.cross_entropy(self.sampled(batch), batch.labels).backward()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's note that Opacus hooks a module whose input has no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield
