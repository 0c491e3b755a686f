"""Merge modifications into the backbone's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedpeft.backbones.families import FAMILIES
from fedpeft.modifications import Modification


def fused_changes(family: str, modifications: Sequence[Modification]) -> dict[str, Tensor]:
    """Return the change of each weight, by name, for one task vector (G = 1).

    Raises:
        ValueError: G > 1, or a modification has no equivalent change of weights.
    """
    total: dict[str, Tensor] = {}
    for modification in modifications:
        site = FAMILIES[family].get(modification.site)
        module = site.module(modification.layer) if site else ""
        # A change of a module's input cannot be merged into the module's weights.
        mergeable = site is None or site.side == "output"
        changes = modification.weight_changes(module) if mergeable else None
        if changes is None:
            raise ValueError(f"{type(modification).__name__} is no change of the weights")
        for name, group in changes.items():
            if len(group) != 1:
                raise ValueError(f"expected one task vector to merge, got {len(group)}")
            change = group[0]
            total[name] = total[name] + change if name in total else change
    return total


@contextmanager
def fused(model: nn.Module, family: str, modifications: Sequence[Modification]) -> Iterator[None]:
    """Merge modifications into the model while the context is open, then restore its weights.

    Raises:
        ValueError: see ``fused_changes``.
    """
    changes = fused_changes(family, modifications)
    weights = {name: model.get_parameter(name) for name in changes}
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    try:
        with torch.no_grad():
            for name, change in changes.items():
                weights[name].add_(change)
        yield
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(kept[name])
