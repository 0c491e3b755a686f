"""Per-example gradients of the methods that change whole weights, through Opacus.

All other methods get a copy of the task vector for each example (``TaskModel.example_gradients``);
whole weights are too large for that. But an example's gradient of the weight of a linear layer,
embedding or LayerNorm follows from the module's input and the gradient of its output (Goodfellow
2015, arXiv 1510.01799); Opacus's grad samplers compute it. Opacus's ``GradSampleModule`` is not
used: it needs a second, trainable model in training mode, stores all gradients twice, and treats
position embeddings, which a batch shares, as those of one example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
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
    parameters = trainable(model, vectors)
    realised = model.realise_parameters(parameters)
    gradients = vectors.new_zeros(len(batch.read), model.layout.size)
    receive = pulled_back(parameters, model.layout.unpack(gradients))
    changes = {m.name: m.value for m in realised.modifications if isinstance(m, WeightChange)}
    weights = current_weights(model, changes)
    origin = dict(zip(weights.values(), changes.values(), strict=True))

    def receive_call(call: Call, gradient: Tensor) -> None:
        for tensor, samples in call.samples(gradient).items():
            receive(origin[tensor], samples)

    return gradients, backward(model, realised, weights, batch, receive, receive_call)


def trainable(model: TaskModel, vectors: Tensor) -> dict[str, Tensor]:
    """Return the parameters of task vectors [1, P] as leaves, ``name -> [1, *shape]``."""
    parts = model.layout.unpack(vectors.detach())
    return {name: part.requires_grad_() for name, part in parts.items()}


def current_weights(model: TaskModel, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's weights with the changes [1, *shape] added, as leaves, by name."""
    backbone = model.backbone.model
    return {
        name: (backbone.get_parameter(name) + change[0]).detach().requires_grad_()
        for name, change in changes.items()
    }


def pulled_back(parameters: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Receiver:
    """Return a receiver that adds each example's gradient of the parameters to ``outputs``.

    Args:
        parameters: name -> [1, *shape], from which the received tensors are made.
        outputs: name -> [N, *shape], of the same names in the same order.
    """
    leaves = list(parameters.values())

    def receive(tensor: Tensor, samples: Tensor) -> None:
        # The vector-Jacobian product of ``realise`` for one tensor. Row by row: SAID takes twice
        # the time and three times the memory on all rows at once. In full fine-tuning the tensor
        # is the parameter itself, and autograd returns the row without a copy.
        for row, cotangent in enumerate(samples.to(tensor.dtype)):  # autocast changes the dtype
            products = torch.autograd.grad(
                tensor, leaves, cotangent[None], retain_graph=True, allow_unused=True
            )
            for part, gradient in zip(outputs.values(), products, strict=True):
                if gradient is not None:
                    part[row] += gradient[0]

    return receive


def backward(
    model: TaskModel,
    realised: Realised,
    weights: Mapping[str, Tensor],
    batch: Batch,
    receive: Receiver,
    receive_call: Callable[[Call, Tensor], None],
) -> Tensor:
    """Pass on each example's gradients of the head and of the modules' outputs; return losses [N].

    Args:
        model: the task model; its backbone does not change.
        realised: its head is used.
        weights: current weights of the backbone, by name; calls of the modules that hold any of
            them are recorded.
        batch: N examples in one group; gradients are multiplied by their weights.
        receive: gets the head's tensors.
        receive_call: gets each call of a module and the gradient of its output, while the weights
            are in the backbone.
    """
    backbone = model.backbone.model
    named = {f"backbone.{name}": weight for name, weight in weights.items()}
    work = partial(_backward, model, realised, set(weights.values()), batch, receive, receive_call)
    losses: Tensor = functional_call(_Within(backbone), named, (work,))
    return losses


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
    weights: AbstractSet[Tensor],
    batch: Batch,
    receive: Receiver,
    receive_call: Callable[[Call, Tensor], None],
) -> Tensor:
    """See ``backward``; one tensor at a time."""
    rows = len(batch.read)
    heads = (realised.head_weight, realised.head_bias)
    copies = [head.detach().repeat_interleave(rows, 0).requires_grad_() for head in heads]
    with _recorded(model.backbone.model, weights, rows) as calls:
        copied = replace(realised, modifications=[], head_weight=copies[0], head_bias=copies[1])
        losses = model.losses(model.outputs(copied, batch), batch)
    wanted = [*copies, *(call.output for call in calls)]
    gradients = torch.autograd.grad((losses * batch.weights).sum(), wanted)
    for head, gradient in zip(heads, gradients[:2], strict=True):
        receive(head, gradient)
    for call, gradient in zip(calls, gradients[2:], strict=True):
        receive_call(call, gradient)
    return losses.detach()


@dataclass(frozen=True)
class Call:
    """One call of a module, with its input and output, [N, ...]."""

    module: nn.Module
    inputs: Tensor
    output: Tensor

    def samples(self, gradient: Tensor) -> dict[Tensor, Tensor]:
        """Return each example's gradient [N, *shape] of the module's weights.

        ``gradient`` is the gradient of the call's output, [N, ...].
        """
        from opacus import GradSampleModule

        sampler = GradSampleModule.GRAD_SAMPLERS[type(self.module)]
        samples: dict[Tensor, Tensor] = sampler(self.module, [self.inputs], gradient)
        padding = getattr(self.module, "padding_idx", None)
        if padding is not None:  # as in torch, but not in Opacus
            samples[self.module.weight][:, padding] = 0  # type: ignore[index]
        return samples


@contextmanager
def _recorded(backbone: nn.Module, weights: AbstractSet[Tensor], rows: int) -> Iterator[list[Call]]:
    """Record the calls of the modules that hold any of ``weights``."""
    calls: list[Call] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # BERT looks up positions once for all examples, [1, T]; every example needs a gradient.
        first, output = (tensor.expand(rows, *tensor.shape[1:]) for tensor in (inputs[0], output))
        calls.append(Call(module, first.detach(), output))
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
