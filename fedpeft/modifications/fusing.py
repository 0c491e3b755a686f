"""Merging modifications into the backbone's weights, and taking them out again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedpeft.modifications import Modification
from fedpeft.sites import FAMILIES


def fused_changes(family: str, modifications: Sequence[Modification]) -> dict[str, Tensor]:
    """Return what to add to each weight, by its name, for one task vector (G = 1).

    Raises:
        ValueError: a modification that is no change of weights.
    """
    total: dict[str, Tensor] = {}
    for modification in modifications:
        site = FAMILIES[family].get(modification.site)
        module = site.module(modification.layer) if site else ""
        # What goes into a module is not in its weights.
        inside = site is None or site.side == "output"
        changes = modification.weight_changes(module) if inside else None
        if changes is None:
            raise ValueError(f"{type(modification).__name__} is no change of the weights")
        for name, group in changes.items():
            if len(group) != 1:
                raise ValueError(f"one task vector can be merged, not {len(group)}")
            change = group[0]
            total[name] = total[name] + change if name in total else change
    return total


@contextmanager
def fused(model: nn.Module, family: str, modifications: Sequence[Modification]) -> Iterator[None]:
    """Merge modifications into the model while the context is open; then its own bits are back.

    Raises:
        ValueError: see ``fused_changes``.
    """
    changes = fused_changes(family, modifications)
    weights = {name: model.get_parameter(name) for name in changes}
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    try:
        with torch.no_grad():
            for name, change in changes.items():
                weights[name] += change
        yield
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(kept[name])
