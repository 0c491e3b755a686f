"""Modifications of hidden states with a leading group axis.

The batch is ordered in G groups of B rows; row g of each tensor below changes the rows of group g.
In the terms of He et al. (2022, section 3), a modification is a modified representation (``site``),
an insertion (``reads``), a functional form (the class) and a composition (what ``apply`` does with
the change). ``hooks`` applies modifications; ``fusing`` merges those with ``weight_changes`` into
the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.projection.operators import Operator

if TYPE_CHECKING:
    from fedpeft.batches.batch import Batch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
}


#: What a modification may read at its own site; any other value names another site of the block.
AT_SITE = ("input", "self", "normed", "output")


@dataclass(frozen=True)
class Modification:
    """One change at one site of one layer.

    Attributes:
        adds_tokens: whether texts get longer.
        elementwise: whether the change acts on each coordinate of a hidden state separately, with
            tensors [G, width]; it can then be applied token by token, with a row for each.
        site: name of the site.
        layer: index of the block; 0 for the embeddings and for whole weights.
        reads: what the change is computed from: ``input`` = the input of the site's module
            (parallel); ``self`` = the representation that is changed (sequential); ``normed`` = a
            LayerNorm's input, normalized, without gain and bias; ``output`` = the module's output
            for the unchanged representation (sites on the input side); or the name of another site
            of the block.
    """

    adds_tokens: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    site: str
    layer: int
    reads: str = field(default="input", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """Return the modified representation.

        Args:
            hidden: the site's representation, [G * B, T, width].
            source: the representation that ``reads`` names, [G * B, T, its width].
        """
        raise TypeError(f"{type(self).__name__} does not change a hidden state")

    def prepare(self, batch: Batch, mask_id: int) -> tuple[Modification, Batch]:
        """Return this modification for a batch, and the batch with any added tokens.

        Args:
            batch: the texts.
            mask_id: token id of the mask, -1 if the tokenizer has none.
        """
        return self, batch

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return changes of weights with the same effect, by name; None = impossible.

        Args:
            module: path of the site's module.
        """
        return None

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with ``change`` applied to each tensor."""
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors().items()}
        return replace(self, **changed)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by field name; each has the leading axis G."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Shift(Modification):
    """h + value: the same shift for all tokens of a group."""

    elementwise = True
    value: Tensor  # [G, width]
    reads: str = field(default="self", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification."""
        groups, width = self.value.shape
        return (hidden.reshape(groups, -1, width) + self.value[:, None]).view_as(hidden)

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return the change of the module's bias."""
        return {f"{module}.bias": self.value}


@dataclass(frozen=True)
class NormChange(Modification):
    """h + gain * x + bias: changes gain and bias of a norm whose normalised input is x."""

    elementwise = True
    gain: Tensor  # [G, width]
    bias: Tensor | None  # [G, width]; None if the norm has no bias
    reads: str = field(default="normed", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification."""
        groups, width = self.gain.shape
        grouped = source.reshape(groups, -1, width)
        change = grouped * self.gain[:, None]
        if self.bias is not None:
            change = change + self.bias[:, None]
        return hidden + change.view_as(hidden)

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return the changes of the norm's gain and bias."""
        biases = {} if self.bias is None else {f"{module}.bias": self.bias}
        return {f"{module}.weight": self.gain, **biases}


@dataclass(frozen=True)
class LowRank(Modification):
    """h + scale * up(down(x)), x = the input of the site's linear layer (Hu et al. 2021)."""

    down: Tensor  # [G, r, width of the input]
    up: Tensor  # [G, width, r]
    scale: float

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification."""
        groups, _, width_in = self.down.shape
        inner = source.reshape(groups, -1, width_in) @ self.down.transpose(1, 2)  # [G, B*T, r]
        return hidden + self.scale * (inner @ self.up.transpose(1, 2)).view_as(hidden)

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return the change of W, scale * B A."""
        return {f"{module}.weight": self.scale * (self.up @ self.down)}


@dataclass(frozen=True)
class ScaledLowRank(Modification):
    """h + b * (B (d * (A x))) with A and B fixed and shared (Kopiczko et al. 2024, equation 2)."""

    inner: Tensor  # d, [G, r]
    outer: Tensor  # b, [G, width]
    down: Operator  # A, [r, width of the input]
    up: Operator  # B, [at least width, r]

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification."""
        groups = len(self.inner)
        low = self.down(source.reshape(groups, -1, source.shape[-1])) * self.inner[:, None]
        change = self.up(low)[..., : self.outer.shape[1]]  # a copy only if B has more rows
        return hidden + (change * self.outer[:, None]).view_as(hidden)

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return the change of W, diag(b) B diag(d) A."""
        down, up = self.down.matrix(), self.up.matrix()[: self.outer.shape[1]]
        return {f"{module}.weight": self.outer[:, :, None] * up * self.inner[:, None] @ down}


@dataclass(frozen=True)
class Bottleneck(Modification):
    """h + scale * (up(f(down(x))) with biases: an adapter (Houlsby et al. 2019, section 2.1)."""

    down: Tensor  # [G, m, width of x]
    down_bias: Tensor  # [G, m]
    up: Tensor  # [G, width, m]
    up_bias: Tensor  # [G, width]
    scale: float | Tensor  # a number, or [G, 1]
    activation: str
    reads: str = field(default="self", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification."""
        groups, _, width_in = self.down.shape
        inner = source.reshape(groups, -1, width_in) @ self.down.transpose(1, 2)
        inner = ACTIVATIONS[self.activation](inner + self.down_bias[:, None])  # [G, B*T, m]
        change = inner @ self.up.transpose(1, 2) + self.up_bias[:, None]
        scale = self.scale[:, :, None] if isinstance(self.scale, Tensor) else self.scale
        return hidden + (scale * change).view_as(hidden)


@dataclass(frozen=True)
class HeadsBottleneck(Modification):
    """For each attention head i: h_i + ReLU(q_i P_k^T) P_v (He et al. 2022, section 3.3)."""

    keys: Tensor  # P_k of all heads side by side, [G, l, width]
    values: Tensor  # P_v, [G, l, width]
    heads: int
    reads: str = field(default="q", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; ``hidden`` holds the heads' outputs side by side."""
        groups = len(self.keys)
        query, keys, values = (
            tensor.reshape(groups, -1, self.heads, tensor.shape[-1] // self.heads)
            for tensor in (source, self.keys, self.values)
        )
        inner = torch.einsum("gnad,glad->ganl", query, keys).relu()
        change = torch.einsum("ganl,glad->gnad", inner, values)
        return hidden + change.reshape(hidden.shape)


@dataclass(frozen=True)
class WeightChange(Modification):
    """W + value for a weight of the backbone; G = 1 only."""

    name: str
    value: Tensor  # [1, *shape]

    def weight_changes(self, module: str) -> dict[str, Tensor] | None:
        """Return the change; ``module`` is not needed."""
        return {self.name: self.value}
