"""Running a frozen encoder with modifications in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers.masking_utils import create_bidirectional_mask

from fedpeft.modifications import Modification, WeightChange
from fedpeft.modifications.packing import Packing
from fedpeft.modifications.prompts import prefixes_of
from fedpeft.sites import FAMILIES, Site

#: What a modification reads at its own site; else the name of another site.
OWN = ("input", "self", "normed", "output")
Seen = dict[tuple[str, int], Tensor]  # representations of other sites, in this forward pass


def run(
    model: Any,
    family: str,
    modifications: Sequence[Modification],
    packing: Packing | None = None,
    **inputs: Tensor,
) -> Tensor:
    """Return the last hidden states [N, T', width] of a transformers encoder with modifications.

    Args:
        model: the encoder.
        family: of its architecture.
        modifications: what changes.
        packing: of the texts, if they are to pass without their padding.
        inputs: input ids, attention mask, token types, padded.
    """
    weights = {m.name: m.value for m in modifications if isinstance(m, WeightChange)}
    others = [m for m in modifications if not isinstance(m, WeightChange)]
    hooked, prefixes = prefixes_of(others)
    arguments: dict[str, Any] = {**inputs, **prefixes}
    with applied(model, family, hooked), packed(model, packing, arguments):
        if weights:
            changed = {
                # Not value[0], whose way back writes zeros as large as the weight and adds to them.
                name: model.get_parameter(name) + value.squeeze(0)
                for name, value in weights.items()
            }
            states = functional_call(model, changed, kwargs=arguments).last_hidden_state
        else:
            states = model(**arguments).last_hidden_state
    return packing.unpack(states) if packing else states


@contextmanager
def packed(model: Any, packing: Packing | None, arguments: dict[str, Any]) -> Iterator[None]:
    """Let texts be packed behind the embeddings while the context is open.

    ``arguments`` of the forward pass get the packing, and the mask in the attention's own form,
    which the model would else make for the packed texts.
    """
    if packing is None:
        yield
        return
    arguments["packing"] = packing
    arguments["attention_mask"] = attention_mask_of(model, arguments["attention_mask"])
    handle = model.embeddings.register_forward_hook(lambda module, given, out: packing.pack(out))
    try:
        yield
    finally:
        handle.remove()


def attention_mask_of(model: Any, attended: Tensor) -> Tensor | None:
    """Return the mask [N, T] in the form that the model's attention takes."""
    like = torch.empty(*attended.shape, 0, dtype=model.dtype, device=attended.device)
    return create_bidirectional_mask(model.config, like, attended)


@contextmanager
def applied(model: nn.Module, family: str, modifications: Sequence[Modification]) -> Iterator[None]:
    """Hook modifications into a transformers encoder while the context is open."""
    sites, seen = FAMILIES[family], Seen()
    places: dict[tuple[str, int], list[Modification]] = defaultdict(list)
    for modification in modifications:
        places[modification.site, modification.layer].append(modification)
    read = {(m.reads, m.layer) for m in modifications if m.reads not in OWN}
    handles = []
    try:
        for place, changes in places.items():
            handles.append(_hook(model, sites[place[0]], place[1], _Change(changes, seen)))
        for place in read:  # after the changes: what is read is what the block goes on with
            handles.append(_hook(model, sites[place[0]], place[1], _Keep(place, seen)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(
    model: nn.Module,
    site: Site,
    layer: int,
    action: Callable[[nn.Module, Tensor, Tensor | None], Tensor],
) -> Any:
    """Call ``action(module, hidden, input)`` at a site; what it returns takes hidden's place."""
    module = model.get_submodule(site.module(layer))

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = inputs
        return (action(module, hidden, hidden), *rest)

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # A module called by keywords only (the embeddings) shows no input.
        return action(module, output, inputs[0] if inputs else None)

    if site.side == "input":
        return module.register_forward_pre_hook(before)
    return module.register_forward_hook(after)


class _Keep:
    """Remember a representation for a modification elsewhere in the block."""

    def __init__(self, place: tuple[str, int], seen: Seen):
        self.place, self.seen = place, seen

    def __call__(self, module: nn.Module, hidden: Tensor, given: Tensor | None) -> Tensor:
        self.seen[self.place] = hidden
        return hidden


class _Change:
    """Do all modifications of one site in their order."""

    def __init__(self, changes: list[Modification], seen: Seen):
        self.changes, self.seen = changes, seen

    def __call__(self, module: nn.Module, hidden: Tensor, given: Tensor | None) -> Tensor:
        for change in self.changes:
            hidden = change.apply(hidden, self._source(change, module, hidden, given))
        return hidden

    def _source(
        self, change: Modification, module: nn.Module, hidden: Tensor, given: Tensor | None
    ) -> Tensor:
        if given is None and change.reads in ("input", "normed"):
            raise TypeError(f"site '{change.site}' shows no input: its module got keywords only")
        match change.reads:
            case "input":
                return given
            case "self":
                return hidden
            case "normed":
                return functional.layer_norm(given, module.normalized_shape, eps=module.eps)
            case "output":
                return module.forward(hidden)  # not called: a call would run the hooks again
            case site:
                return self.seen[site, change.layer]
