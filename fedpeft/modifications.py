"""Modifications of hidden states with a leading group axis, and the hooks that apply them.

The batch is ordered in G groups of B rows; row g of every tensor below changes the rows of
group g. In the terms of He et al. (2022): a modification is (site = modified representation,
functional form, composition); the insertion follows from what the site hands over as input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Site:
    """Where a site is in a block: a module's path, and whether its input or output changes."""

    module: str
    side: Literal["input", "output"]


#: A BERT block. RoBERTa's has the same module names, so one map serves both families.
BERT_SITES = {
    "q": Site("attention.self.query", "output"),
    "k": Site("attention.self.key", "output"),
    "v": Site("attention.self.value", "output"),
    "attn_norm": Site("attention.output", "output"),
    "ffn_mid": Site("intermediate.dense", "output"),
    "ffn_out": Site("output.LayerNorm", "input"),  # dense + residual, before LayerNorm
    "ffn_norm": Site("output", "output"),
}
FAMILIES = {"bert": BERT_SITES, "roberta": BERT_SITES}


@dataclass(frozen=True)
class Modification:
    """One change at one site of one layer."""

    site: str
    layer: int

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """Return the modified representation.

        Args:
            hidden: the site's representation, [G * B, T, width].
            source: what the site's module got as its input, [G * B, T, width of the input].
        """
        raise TypeError(f"{type(self).__name__} does not say how it applies")

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with ``change`` done to each tensor."""
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by field name; each has the leading axis G."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Shift(Modification):
    """h + value: a constant for every token (He et al. 2022: identity-free, added)."""

    value: Tensor  # [G, width]

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; the same shift for all tokens of a group."""
        groups, width = self.value.shape
        return (hidden.view(groups, -1, width) + self.value[:, None]).view_as(hidden)


@dataclass(frozen=True)
class PromptShift(Modification):
    """h + value at the k prompt positions, which stand in front of the text."""

    value: Tensor  # [G, k, width]

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; tokens behind the prompt stay as they are."""
        groups, length, width = self.value.shape
        grouped = hidden.view(groups, -1, hidden.shape[1], width)
        prompt = grouped[:, :, :length] + self.value[:, None]
        return torch.cat([prompt, grouped[:, :, length:]], dim=2).view_as(hidden)


@dataclass(frozen=True)
class Prompt(Modification):
    """k embeddings put in front of the embedding output (site ``embeddings``, layer 0)."""

    value: Tensor  # [G, k, width]

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """Return [G * B, k + T, width]; the caller extends the attention mask."""
        groups, length, width = self.value.shape
        rows = hidden.shape[0] // groups
        prompt = self.value[:, None].expand(groups, rows, length, width)
        return torch.cat([prompt.reshape(-1, length, width).to(hidden.dtype), hidden], dim=1)


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


def prompt_length(modifications: Sequence[Modification]) -> int:
    """Return how many positions the modifications put in front of the text."""
    return sum(m.value.shape[1] for m in modifications if isinstance(m, Prompt))


@contextmanager
def applied(model: nn.Module, family: str, modifications: Sequence[Modification]) -> Iterator[None]:
    """Hook the modifications into a transformers encoder while the context is open."""
    places: dict[tuple[nn.Module, str], list[Modification]] = defaultdict(list)
    for modification in modifications:
        places[_place(model, family, modification)].append(modification)
    handles = [
        module.register_forward_pre_hook(_change_input(changes))
        if side == "input"
        else module.register_forward_hook(_change_output(changes))
        for (module, side), changes in places.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _place(model: nn.Module, family: str, modification: Modification) -> tuple[nn.Module, str]:
    if modification.site == "embeddings":
        return model.get_submodule("embeddings"), "output"
    site = FAMILIES[family][modification.site]
    path = f"encoder.layer.{modification.layer}.{site.module}"
    return model.get_submodule(path), site.side


def _change_input(changes: list[Modification]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = inputs
        for change in changes:
            hidden = change.apply(hidden, inputs[0])
        return (hidden, *rest)

    return hook


def _change_output(changes: list[Modification]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # A module called by keywords only (the embeddings) has no positional input.
        source = inputs[0] if inputs else output
        for change in changes:
            output = change.apply(output, source)
        return output

    return hook
