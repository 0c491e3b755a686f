"""Merge modifications into the backbone's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedpeft.backbones.families import Site
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.modifications import Modification


def fused_changes(shape: BackboneShape, modifications: Sequence[Modification]) -> dict[str, Tensor]:
    """Return the change of each weight, by name, for one task vector (G = 1).

    Raises:
        ValueError: G > 1, or a modification has no equivalent change of weights.
        UserError: the backbone has no bias where a modification changes one.
    """
    total: dict[str, Tensor] = {}
    for modification in modifications:
        for name, group in _changes(shape, modification).items():
            if len(group) != 1:
                raise ValueError(f"expected one task vector to merge, got {len(group)}")
            change = group[0]
            if name not in shape.weights:
                raise UserError(
                    f"a shift at site '{modification.site}' cannot be merged: {shape.family} "
                    f"backbones have no '{name}'; use the task vector itself"
                )
            total[name] = total[name] + change if name in total else change
    return total


def _changes(shape: BackboneShape, modification: Modification) -> dict[str, Tensor]:
    """Return the changes of weights [G, ...] as the backbone stores them."""
    site = None if modification.site == "weights" else _place(shape, modification)
    # A change of a module's input cannot be merged into the module's weights.
    mergeable = site is None or site.side == "output"
    changes = modification.weight_changes(site.path if site else "") if mergeable else None
    if changes is None:
        raise ValueError(f"{type(modification).__name__} is no change of the weights")
    return {name: _stored(change, site) if site else change for name, change in changes.items()}


def _place(shape: BackboneShape, modification: Modification) -> Site:
    return shape.place(modification.site, modification.layer)


def _stored(change: Tensor, site: Site) -> Tensor:
    """Return the change [G, outputs, ...] of a site's part as a change of the module's weight."""
    index, count = site.part
    if count > 1:
        parts = [torch.zeros_like(change)] * count
        parts[index] = change
        change = torch.cat(parts, dim=1)
    return change.transpose(1, 2) if site.transposed and change.dim() == 3 else change


@contextmanager
def fused(
    model: nn.Module, shape: BackboneShape, modifications: Sequence[Modification]
) -> Iterator[None]:
    """Merge modifications into the model while the context is open, then restore its weights.

    Raises:
        ValueError: see ``fused_changes``.
        UserError: see ``fused_changes``.
    """
    changes = fused_changes(shape, modifications)
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
