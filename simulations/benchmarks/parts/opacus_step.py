"""The other side of the privacy benchmark: DP-SGD as a user of Opacus writes it for one method.

The method's trained numbers are parameters of small modules inside a copy of the backbone
(``plain_modules``), whose per-example gradients come from Opacus's hooks (``GradSampleModule``);
``DPOptimizer`` clips, adds noise and steps. Same mathematics as ``fedpeft.privacy.example``, none
of its code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from opacus import GradSampleModule
from opacus.grad_sample import register_grad_sampler
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from fedpeft.model import TaskModel
from fedpeft.tasks.batching import Batch
from simulations.benchmarks.parts.plain_modules import (
    METHODS,
    Classifier,
    Prompt,
    PromptShift,
    Shift,
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
        for module in encoder.modules():  # Opacus wants train(), where dropout would drop
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        own = METHODS[model.method.settings.name](encoder, model)
        classifier = Classifier(encoder, model.backbone.shape.width, model.classes)
        head = {f"head.{name}": value for name, value in classifier.head.named_parameters()}
        parts = model.layout.unpack(vector[None])
        named = own | head
        self.parameters = [named[name] for name in parts]  # in the vector's order
        with torch.no_grad():
            for parameter, part in zip(self.parameters, parts.values(), strict=True):
                parameter.copy_(part[0])
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
        return torch.cat([each.grad_sample.flatten(1) for each in self.parameters], dim=1)

    def step(self, batch: Batch) -> None:
        """Do one step."""
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
