"""Per-example gradients of the methods that change whole weights, through Opacus.

All other methods copy the modified parameters once per example (``TaskModel.example_gradients``);
whole weights are too large for that. But an example's gradient of the weight of a linear layer,
embedding or LayerNorm follows from the module's input and the gradient of its output (Goodfellow
2015, arXiv 1510.01799); Opacus's grad samplers compute it. Opacus's ``GradSampleModule`` is not
used: it needs a second, trainable model in training mode, stores all gradients twice, and treats
position embeddings, which a batch shares, as those of one example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpeft.modifications import WeightChange

if TYPE_CHECKING:
    from fedpeft.batches.batch import Batch
    from fedpeft.model import TaskModel
    from fedpeft.parameters import Realised

#: Called with a realised tensor [1, *shape] and each example's gradient of it [N, *shape].
Receiver = Callable[[Tensor, Tensor], None]


def example_gradients(model: TaskModel, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (gradient [N, P], loss [N]) of each example, for any method.

    Args:
        model: the task model.
        vectors: task vectors [G, P]; G = 1 if the method changes whole weights.
        batch: N examples in G groups; those of weight 0 have a gradient of 0.

    Raises:
        ValueError: several vectors with a method that changes whole weights.
    """
    if model.method.grouped:
        return model.example_gradients(vectors, batch)
    return weight_gradients(model, vectors, batch)


def weight_gradients(model: TaskModel, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (gradient [N, P] of each example's loss times its weight, loss [N]).

    Memory: the result and the gradients of about one layer for all examples. The backbone does
    not change.

    Args:
        model: of a method whose modifications are all changes of weights.
        vectors: one task vector, [1, P].
        batch: N examples in one group.

    Raises:
        ValueError: several task vectors, or a family whose modules Opacus does not know.
    """
    if not model.method.shape.sites.example_weights:
        family = model.method.shape.family
        raise ValueError(f"{family} backbones have weights without gradients of single examples")
    parts = model.layout.unpack(vectors.detach())
    parameters = {name: part.requires_grad_() for name, part in parts.items()}
    realised = model.realise_parameters(parameters)
    gradients = vectors.new_zeros(len(batch.read), model.layout.size)
    leaves, outputs = list(parameters.values()), list(model.layout.unpack(gradients).values())

    def receive(tensor: Tensor, samples: Tensor) -> None:
        # The vector-Jacobian product of ``realise`` for one tensor. Row by row: SAID takes twice
        # the time and three times the memory on all rows at once. In full fine-tuning the tensor
        # is the parameter itself, and autograd returns the row without a copy.
        for row, cotangent in enumerate(samples.to(tensor.dtype)):  # autocast changes the dtype
            products = torch.autograd.grad(
                tensor, leaves, cotangent[None], retain_graph=True, allow_unused=True
            )
            for part, gradient in zip(outputs, products, strict=True):
                if gradient is not None:
                    part[row] += gradient[0]

    backbone = model.backbone.model
    changes = {m.name: m.value for m in realised.modifications if isinstance(m, WeightChange)}
    weights = {
        f"backbone.{name}": (backbone.get_parameter(name) + change[0]).detach().requires_grad_()
        for name, change in changes.items()
    }
    origin = dict(zip(weights.values(), changes.values(), strict=True))
    work = partial(_backward, model, realised, origin, batch, receive)
    return gradients, functional_call(_Within(backbone), weights, (work,))


class _Within(nn.Module):
    """Run any computation under ``functional_call``, with other weights in the backbone."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _backward(
    model: TaskModel,
    realised: Realised,
    origin: Mapping[Tensor, Tensor],
    batch: Batch,
    receive: Receiver,
) -> Tensor:
    """Pass each example's gradients to ``receive``, one tensor at a time; return losses [N].

    ``origin`` maps the backbone's current weights to their realised changes [1, *shape].
    """
    rows = len(batch.read)
    heads = (realised.head_weight, realised.head_bias)
    copies = [head.detach().repeat_interleave(rows, 0).requires_grad_() for head in heads]
    with _recorded(model.backbone.model, origin, rows) as calls:
        copied = replace(realised, modifications=[], head_weight=copies[0], head_bias=copies[1])
        losses = model.losses(model.outputs(copied, batch), batch)
    wanted = [*copies, *(call.output for call in calls)]
    gradients = torch.autograd.grad((losses * batch.weights).sum(), wanted)
    for head, gradient in zip(heads, gradients[:2], strict=True):
        receive(head, gradient)
    for call, gradient in zip(calls, gradients[2:], strict=True):
        for tensor, samples in _samples(call, gradient).items():
            receive(origin[tensor], samples)
    return losses.detach()


@dataclass(frozen=True)
class _Call:
    """One call of a module, with its input and output, [N, ...]."""

    module: nn.Module
    inputs: Tensor
    output: Tensor


def _samples(call: _Call, gradient: Tensor) -> dict[Tensor, Tensor]:
    """Return each example's gradient [N, *shape] of the module's weights.

    ``gradient`` is the gradient of the call's output, [N, ...].
    """
    from opacus import GradSampleModule

    sampler = GradSampleModule.GRAD_SAMPLERS[type(call.module)]
    samples = sampler(call.module, [call.inputs], gradient)
    padding = getattr(call.module, "padding_idx", None)
    if padding is not None:  # as in torch, but not in Opacus
        samples[call.module.weight][:, padding] = 0
    return samples


@contextmanager
def _recorded(
    backbone: nn.Module, weights: Mapping[Tensor, Tensor], rows: int
) -> Iterator[list[_Call]]:
    """Record the calls of the modules that hold any of ``weights``."""
    calls: list[_Call] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # BERT looks up positions once for all examples, [1, T]; every example needs a gradient.
        first, output = (tensor.expand(rows, *tensor.shape[1:]) for tensor in (inputs[0], output))
        calls.append(_Call(module, first.detach(), output))
        return output

    owners = [
        module
        for module in backbone.modules()
        if any(weight in weights for weight in module.parameters(recurse=False))
    ]
    handles = [module.register_forward_hook(record) for module in owners]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
