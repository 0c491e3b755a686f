"""Per-example gradients of the methods that change whole weights, through Opacus.

Weights are too large for one copy per example, which is how every other method gets its gradients
(``TaskModel.example_gradients``). But all that an example does to the weight of a linear layer, an
embedding or a LayerNorm is in what the module was given and in the gradient of what it returned
(Goodfellow 2015, arXiv 1510.01799). Opacus's grad samplers compute one from the other. Its
``GradSampleModule`` is not used: it needs a second, trainable model in training mode, keeps all
gradients a second time, and takes embeddings of positions, which a batch shares, for one example's.
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
    from fedpeft.model import Realised, TaskModel
    from fedpeft.tasks.batching import Batch

#: Gets a realised tensor [1, *shape] and every example's gradient with respect to it [N, *shape].
Receiver = Callable[[Tensor, Tensor], None]


def example_gradients(model: TaskModel, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (gradient [N, P] of each example's own loss, loss [N]), of any method.

    Args:
        model: the task model.
        vectors: task vectors [G, P]; one, if the method changes whole weights.
        batch: N examples, in G groups; those of weight 0 have a gradient of 0.

    Raises:
        ValueError: several vectors with a method that changes whole weights.
    """
    if model.method.grouped:
        return model.example_gradients(vectors, batch)
    return weight_gradients(model, vectors, batch)


def weight_gradients(model: TaskModel, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (gradient [N, P] of each example's own loss times its weight, loss [N]).

    Beside the result, only the gradients of about one layer are in memory for all examples at once.
    Nothing is kept after the call, and the backbone is as it was.

    Args:
        model: with a method all of whose modifications are changes of weights.
        vectors: one task vector, [1, P].
        batch: N examples, in one group.

    Raises:
        ValueError: several task vectors.
    """
    parts = model.layout.unpack(vectors.detach())
    parameters = {name: part.requires_grad_() for name, part in parts.items()}
    realised = model.realise_parameters(parameters)
    gradients = vectors.new_zeros(len(batch.read), model.layout.size)
    leaves, into = list(parameters.values()), list(model.layout.unpack(gradients).values())

    def receive(tensor: Tensor, found: Tensor) -> None:
        # The vector-Jacobian product of ``realise``, of this one tensor only. Row by row: SAID on
        # all rows at once takes twice the time and three times the memory. In full fine-tuning
        # the tensor is the parameter itself, and a row comes back as it is, not copied.
        for row, cotangent in enumerate(found.to(tensor.dtype)):  # autocast may have another
            pulled = torch.autograd.grad(
                tensor, leaves, cotangent[None], retain_graph=True, allow_unused=True
            )
            for part, gradient in zip(into, pulled, strict=True):
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
    """Lets a whole computation, not only a forward pass, run while a backbone has other weights."""

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
    """Hand every example's gradients to ``receive``, one tensor at a time; return losses [N].

    ``origin`` gives the realised change [1, *shape] of each of the weights the backbone now has.
    """
    rows = len(batch.read)
    heads = (realised.head_weight, realised.head_bias)
    copies = [each.detach().repeat_interleave(rows, 0).requires_grad_() for each in heads]
    with _recorded(model.backbone.model, origin, rows) as calls:
        copied = replace(realised, modifications=[], head_weight=copies[0], head_bias=copies[1])
        losses = model.losses(model.outputs(copied, batch), batch)
    wanted = [*copies, *(call.output for call in calls)]
    found = torch.autograd.grad((losses * batch.weights).sum(), wanted)
    for head, gradient in zip(heads, found[:2], strict=True):
        receive(head, gradient)
    for call, gradient in zip(calls, found[2:], strict=True):
        for tensor, samples in _samples(call, gradient).items():
            receive(origin[tensor], samples)
    return losses.detach()


@dataclass(frozen=True)
class _Call:
    """One call of a module: what it was given and what it returned, [N, ...]."""

    module: nn.Module
    given: Tensor
    output: Tensor


def _samples(call: _Call, gradient: Tensor) -> dict[Tensor, Tensor]:
    """Return every example's gradient [N, *shape] of each of the module's weights.

    ``gradient`` is that of the call's output, [N, ...].
    """
    from opacus import GradSampleModule

    sampler = GradSampleModule.GRAD_SAMPLERS[type(call.module)]
    samples = sampler(call.module, [call.given], gradient)
    padding = getattr(call.module, "padding_idx", None)
    if padding is not None:  # torch gives this row of an embedding no gradient, Opacus does
        samples[call.module.weight][:, padding] = 0
    return samples


@contextmanager
def _recorded(
    backbone: nn.Module, weights: Mapping[Tensor, Tensor], rows: int
) -> Iterator[list[_Call]]:
    """Record the calls of the modules that own some weights while the context is open."""
    calls: list[_Call] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # BERT looks its positions up once for all examples, [1, T]; each needs its own gradient.
        given, output = (each.expand(rows, *each.shape[1:]) for each in (inputs[0], output))
        calls.append(_Call(module, given.detach(), output))
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
