"""Frozen weights in a compact form: bfloat16, 8 bits or 4 bits.

- bfloat16: linear layers hold and multiply bfloat16, under torch's autocast.
- int8 and int4: linear layers hold rounded weights, see the module ``rounding``.

Embeddings take 8 bits with int8 and int4: the error of 4 bits would reach the input of every block.
All other parameters, such as biases and norms, stay in float32.

An int8 or int4 layer expands its weight to float32 in the forward pass and again in the backward
pass, so outputs and gradients equal those of a float32 layer with the rounded weight. torchao 0.18
has int8 layers, too, but its autograd keeps the float32 weight of every layer until the backward
pass, which takes as much memory as a float32 backbone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from fedpeft.backbones.rounding import FourBit, Rows, Stored


class _Product(torch.autograd.Function):
    """x W^T + bias; saves only the compact weight, which the backward pass expands again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stored: Stored, bias: Tensor | None) -> Tensor:
        ctx.stored = stored
        parts, start = [], 0
        for piece in stored.pieces(x.dtype):
            stop = start + len(piece)
            part_bias = bias[start:stop].to(x.dtype) if bias is not None else None
            parts.append(functional.linear(x, piece, part_bias))
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total, start = None, 0
        for piece in ctx.stored.pieces(gradient.dtype):
            part = gradient[..., start : start + len(piece)] @ piece
            total = part if total is None else total + part
            start += len(piece)
        assert total is not None, "a linear layer has at least one output"
        return total, None, None


class _Compact(nn.Module):
    """A module whose weight is replaced by a compact one.

    Attributes:
        stored: the weight [rows, columns].
    """

    def __init__(self, module: Any, stored: Any):
        super().__init__()
        self._module = (module,)  # in a tuple, so that it is no submodule
        self.stored = stored
        module.weight = None

    @property
    def weight(self) -> Tensor:
        """The weight in float32, [rows, columns], for models that read it."""
        return torch.cat([*self.stored.pieces(torch.float32)])

    def expanded(self, tied: dict[int, nn.Parameter]) -> nn.Module:
        """Return the original module with the weight in float32.

        Args:
            tied: the parameters made so far by the id of their stored weight, which modules may
                share; this module's is added.
        """
        (module,) = self._module
        if id(self.stored) not in tied:
            weight = self.weight
            weight = weight.T.contiguous() if isinstance(module, Conv1D) else weight
            tied[id(self.stored)] = nn.Parameter(weight, requires_grad=False)
        module.weight = tied[id(self.stored)]
        return module


class CompactLinear(_Compact):
    """A linear layer with a compact weight."""

    def __init__(self, module: nn.Linear | Conv1D, stored: Stored):
        super().__init__(module, stored)
        self.bias = module.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., rows] of inputs [..., columns]."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        return _Product.apply(x, self.stored, self.bias)


class CompactEmbedding(_Compact):
    """A table of embeddings in 8 bits or bfloat16; returns float32."""

    def __init__(self, module: nn.Embedding, stored: Rows):
        super().__init__(module, stored)
        self.scale = getattr(module, "embed_scale", 1.0)  # BART's

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., columns] of token ids [...]."""
        return self.stored.at(ids) * self.scale


def compact(model: nn.Module, form: str, device: torch.device) -> None:
    """Replace the weights of a frozen model by compact ones, in place and one after the other.

    Args:
        model: a model of transformers in float32.
        form: "bfloat16", "int8" or "int4".
        device: where the weights are stored.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    made: dict[int, Stored] = {}  # by the id of the weight: modules may share it
    kept = []  # the weights: the id of a deleted one could be used again
    replaced: dict[nn.Module, nn.Module] = {}  # a module may have several paths
    output: Any = model.get_output_embeddings()  # type: ignore[operator]

    def stored(weight: Tensor, kind: str) -> Any:
        if id(weight) not in made:
            kept.append(weight)
            made[id(weight)] = _stored(weight.detach().to(device), kind)
            weight.data = weight.data.new_empty(0)
        return made[id(weight)]

    table = "bfloat16" if form == "bfloat16" else "int8"
    for path, module in [*model.named_modules(remove_duplicate=False)]:
        if module not in replaced:
            if type(module) is nn.Embedding or hasattr(module, "embed_scale"):
                replaced[module] = CompactEmbedding(module, stored(module.weight, table))
            elif module is output:
                replaced[module] = CompactLinear(module, stored(module.weight, table))
            elif type(module) not in (nn.Linear, Conv1D):
                continue
            elif form == "bfloat16":
                for parameter in module.parameters():
                    parameter.data = parameter.data.bfloat16()
                continue
            else:
                replaced[module] = CompactLinear(module, stored(_by_outputs(module), form))
        place, _, name = path.rpartition(".")
        setattr(model.get_submodule(place), name, replaced[module])
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # a view of the file would keep all of it in memory


def _by_outputs(module: Any) -> Tensor:
    """Return a layer's weight as [outputs, inputs]."""
    weight: Tensor = module.weight
    return nn.Parameter(weight.T.contiguous(), False) if isinstance(module, Conv1D) else weight


def _stored(weight: Tensor, form: str) -> Stored:
    if form == "bfloat16":
        return Rows(weight.bfloat16())
    return Rows.rounded(weight) if form == "int8" else FourBit.rounded(weight)


def expanded(model: nn.Module) -> Any:
    """Return a copy of a model in float32 that computes with the values of its compact weights."""
    model = copy.deepcopy(model)
    tied: dict[int, nn.Parameter] = {}
    for path, module in [*model.named_modules(remove_duplicate=False)]:
        if isinstance(module, _Compact):
            place, _, name = path.rpartition(".")
            setattr(model.get_submodule(place), name, module.expanded(tied))
    return model.float()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights in memory, each counted once."""
    held: dict[int, int] = {id(p): p.nbytes for p in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        if isinstance(module, _Compact):
            held[id(module.stored)] = module.stored.nbytes
    return sum(held.values())
