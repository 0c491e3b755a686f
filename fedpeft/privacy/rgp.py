"""Reparametrized gradient perturbation, RGP (Yu et al. 2021, arXiv 2106.09352, algorithm 1).

DP-SGD of full fine-tuning on gradients of fewer numbers. In every step the matrix W [o, i] of each
linear layer counts as L R + (W - L R), the second part constant, with orthonormal columns of L
[o, r] and orthonormal rows of R [r, i]. For G = dloss/dW the gradients of the two carriers are
dL = G R^T and dR = L^T G. Those of one example are clipped together with its gradients of biases,
LayerNorms and head, and the noise is added to them. From the noisy sums follows the update

    dL R + L dR - L L^T dL R,

which without noise is G projected on the spans: L L^T G + (I - L L^T) G R^T R.

The carriers are the result of one power iteration on W - W_0, the change since the pretrained
weights, which is what the task vector holds; where it is zero, they are random. They depend on the
data only through earlier noisy updates, so a step has the guarantee of DP-SGD.

Differences from the authors' code: the embeddings keep their pretrained values, because the carrier
of the words alone would have r numbers per word of the vocabulary; and the head's gradients are
not divided by ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedpeft.modifications import WeightChange
from fedpeft.privacy.noise import Noise
from fedpeft.privacy.whole_weights import (
    Call,
    backward,
    current_weights,
    pulled_back,
    trainable,
)
from fedpeft.vector import HEAD, Layout

if TYPE_CHECKING:
    from fedpeft.batches.batch import Batch
    from fedpeft.model import TaskModel

LEFT, RIGHT = ".left", ".right"  # suffixes of the carriers' names in the layout


@dataclass(frozen=True)
class Carriers:
    """The gradient carriers of one step.

    Attributes:
        pairs: name of a matrix [o, i] -> (L [o, r], R [r, i]).
        layout: layout of an example's gradient [Q]: of L and R of each matrix, and of the
            parameters that are trained themselves.
    """

    pairs: Mapping[str, tuple[Tensor, Tensor]]
    layout: Layout

    def example_gradients(
        self, model: TaskModel, vectors: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return (gradient [N, Q] of each example's loss times its weight, loss [N]).

        Args:
            model: of full fine-tuning.
            vectors: one task vector, [1, P].
            batch: N examples in one group.
        """
        parameters = trainable(model, vectors)
        realised = model.realise_parameters(parameters)
        gradients = vectors.new_zeros(len(batch.read), self.layout.size)
        outputs = self.layout.unpack(gradients)
        heads = [name for name in parameters if name.startswith(HEAD)]
        receive = pulled_back(*({name: of[name] for name in heads} for of in (parameters, outputs)))
        changes = {m.name: m.value for m in realised.modifications if isinstance(m, WeightChange)}
        weights = current_weights(model, changes)
        names = {weight: name for name, weight in weights.items()}

        def receive_call(call: Call, gradient: Tensor) -> None:
            for name, samples in self._samples(call, gradient, names):
                outputs[name] += samples.to(gradients.dtype)

        return gradients, backward(model, realised, weights, batch, receive, receive_call)

    def lift(self, layout: Layout, gradient: Tensor) -> Tensor:
        """Return the update [1, P] of a task vector from the carriers' gradient [1, Q].

        Args:
            layout: of the task vector.
            gradient: see ``layout`` of the class.
        """
        lifted = gradient.new_zeros(1, layout.size)
        parts = self.layout.unpack(gradient)
        for name, into in layout.unpack(lifted).items():
            if name in self.pairs:
                left, right = self.pairs[name]
                of_left, of_right = parts[name + LEFT][0], parts[name + RIGHT][0]
                outside = of_left - left @ (left.T @ of_left)
                into[0] = outside @ right + left @ of_right
            elif name in parts:
                into.copy_(parts[name])
        return lifted

    def _samples(
        self, call: Call, gradient: Tensor, names: Mapping[Tensor, str]
    ) -> list[tuple[str, Tensor]]:
        """Return each example's gradients [N, *shape] of the weights of a call, by name."""
        module, inputs = call.module, call.inputs
        if isinstance(module, nn.Embedding):
            return []
        if not isinstance(module, nn.Linear):
            return [(names[tensor], samples) for tensor, samples in call.samples(gradient).items()]
        matrix = names[module.weight]
        left, right = (carrier.to(inputs.dtype) for carrier in self.pairs[matrix])
        gradient = gradient.to(inputs.dtype)
        of_left = torch.einsum("nto,ntr->nor", gradient, inputs @ right.T)
        of_right = torch.einsum("ntr,nti->nri", gradient @ left, inputs)
        of_bias = [(names[module.bias], gradient.sum(1))] if module.bias is not None else []
        return [(matrix + LEFT, of_left), (matrix + RIGHT, of_right), *of_bias]


def carriers_of(model: TaskModel, vectors: Tensor, rank: int, noise: Noise) -> Carriers:
    """Return the carriers of a step at a task vector [1, P].

    Args:
        model: of full fine-tuning.
        vectors: [1, P], the changes since the pretrained weights.
        rank: r; at most the smaller side of a matrix is used.
        noise: random numbers of this client in this round, from which the power iteration starts.
    """
    linear = {
        f"{name}.weight"
        for name, module in model.backbone.model.named_modules()
        if isinstance(module, nn.Linear)
    }
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    entries: list[tuple[str, tuple[int, ...]]] = []
    for name, part in model.layout.unpack(vectors.detach()).items():
        if name in linear:
            left, right = pairs[name] = power_iteration(part[0], rank, noise)
            entries += [(name + LEFT, tuple(left.shape)), (name + RIGHT, tuple(right.shape))]
        elif name.startswith(HEAD) or part.dim() == 2:  # vectors, not matrices of embeddings
            entries.append((name, tuple(part.shape[1:])))
    return Carriers(pairs, Layout(tuple(entries)))


def power_iteration(change: Tensor, rank: int, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return (L, R) of a change [o, i] by one iteration (Yu et al. 2021, algorithm 2).

    Args:
        change: of a matrix; zero = random carriers.
        rank: r; at most min(o, i) is used.
        noise: source of the start.
    """
    outputs, inputs = change.shape
    rank = min(rank, outputs, inputs)
    left = _orthonormal(change @ _normal(change, inputs, rank, noise), noise)
    return left, _orthonormal(change.T @ left, noise).T


def _orthonormal(columns: Tensor, noise: Noise) -> Tensor:
    """Return an orthonormal basis [n, r] of columns, completed at random where they lack rank.

    Random numbers as small as rounding errors decide where the columns decide nothing.
    """
    size = torch.finfo(columns.dtype).eps * (columns.norm() or 1)
    rows, rank = columns.shape
    return torch.linalg.qr(columns + size * _normal(columns, rows, rank, noise))[0]


def _normal(like: Tensor, rows: int, columns: int, noise: Noise) -> Tensor:
    numbers = torch.from_numpy(noise.normal(rows * columns)).view(rows, columns)
    return numbers.to(like.device, like.dtype)
