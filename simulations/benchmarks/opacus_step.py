"""The other side of the privacy benchmark: DP-SGD as a user of Opacus writes it for one method.

The method's trained numbers are parameters of small modules inside a copy of the backbone, whose
per-example gradients come from Opacus's hooks (``GradSampleModule``); ``DPOptimizer`` clips, adds
noise and steps. Same mathematics as ``fedpeft.privacy.example``, none of its code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from math import sqrt
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import register_grad_sampler
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from fedpeft.model import TaskModel
from fedpeft.projection import Projection
from fedpeft.tasks.encoding import Batch

Parameters = dict[str, nn.Parameter]


class Changed(nn.Module):
    """A frozen module and a trained one that changes its output."""

    def __init__(self, frozen: nn.Module, change: nn.Module):
        super().__init__()
        self.frozen, self.change = frozen, change

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the changed output."""
        return self.change(self.frozen(*inputs, **named))


class Shift(nn.Module):
    """h + z W for every token; z [d] is the same parameter in every block."""

    def __init__(self, z: nn.Parameter, fixed: Tensor):
        super().__init__()
        self.z = z
        self.fixed = fixed  # [d, width]; no buffer: Opacus refuses trained modules that have one

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, T, width]."""
        return hidden + self.z @ self.fixed


class Prompt(Shift):
    """z W as a token in front of the text."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, 1 + T, width]."""
        token = (self.z @ self.fixed).expand(len(hidden), 1, -1)
        return torch.cat([token, hidden], dim=1)


class PromptShift(Shift):
    """h + z W at the token in front."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, 1 + T, width]."""
        return torch.cat([hidden[:, :1] + self.z @ self.fixed, hidden[:, 1:]], dim=1)


class LoRALinear(nn.Module):
    """A frozen linear layer with a low-rank change (Hu et al. 2021), as peft builds it."""

    def __init__(self, frozen: nn.Linear, rank: int, scale: float):
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, T, outputs]."""
        return self.frozen(hidden) + self.scale * self.up(self.down(hidden))


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


def _slash(encoder: nn.Module, model: TaskModel) -> Parameters:
    z, fixed = _projected(model)
    for block, matrix in zip(encoder.encoder.layer, fixed, strict=True):
        block.output.dense = Changed(block.output.dense, Shift(z, matrix))
    return {"z": z}


def _jr_warp(encoder: nn.Module, model: TaskModel) -> Parameters:
    z, (first, *later) = _projected(model)
    encoder.embeddings = Changed(encoder.embeddings, Prompt(z, first))
    for block, matrix in zip(encoder.encoder.layer, later, strict=False):  # none after the last
        block.output.LayerNorm = Changed(block.output.LayerNorm, PromptShift(z, matrix))
    return {"z": z}


def _linear(encoder: nn.Module, model: TaskModel) -> Parameters:
    return {}


def _lora(encoder: nn.Module, model: TaskModel) -> Parameters:
    rank, alpha = model.method.settings.rank, model.method.settings.alpha
    found = {}
    for number, block in enumerate(encoder.encoder.layer):
        attention = block.attention.self
        for site, name in (("q", "query"), ("v", "value")):
            layer = LoRALinear(getattr(attention, name), rank, alpha / rank)
            setattr(attention, name, layer)
            found[f"{number}.{site}.A"] = layer.down.weight
            found[f"{number}.{site}.B"] = layer.up.weight
    return found


#: Puts a method's modules into a copy of the encoder, and names their parameters as its layout.
METHODS: dict[str, Callable[[nn.Module, TaskModel], Parameters]] = {
    "slash": _slash,
    "jr_warp": _jr_warp,
    "linear": _linear,
    "lora": _lora,
}


def _projected(model: TaskModel) -> tuple[nn.Parameter, list[Tensor]]:
    """Return z [d] and every W [d, width], of variance 1/d."""
    fixed = [w for w in model.method.projections() if isinstance(w, Projection)]
    d = fixed[0].columns
    return nn.Parameter(torch.zeros(d)), [torch.from_numpy(w.transposed()) / sqrt(d) for w in fixed]


class Classifier(nn.Module):
    """The changed encoder and a linear head on the mean of a text's tokens."""

    def __init__(self, encoder: nn.Module, width: int, classes: int):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [N, C]."""
        mask, tokens = batch.attention_mask, batch.input_ids.shape[1]
        # A prompt is attended, too; one of none changes nothing.
        prompts = int(isinstance(self.encoder.embeddings, Changed))
        states = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=functional.pad(mask, (prompts, 0), value=1),
            token_type_ids=batch.token_type_ids,
        ).last_hidden_state[:, -tokens:]
        share = mask[:, :, None].to(states.dtype)
        return self.head((states * share).sum(1) / share.sum(1))


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
