"""Forward hooks that apply modifications inside a backbone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedpeft.backbones.families import Site
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.modifications import AT_SITE, Modification

_Seen = dict[tuple[str, int], Tensor]  # representations of other sites, in this forward pass
#: Called with a module, the representation at a site, and the module's input.
Action = Callable[[nn.Module, Tensor, Tensor | None], Tensor]


@contextmanager
def applied(
    model: nn.Module, shape: BackboneShape, modifications: Sequence[Modification]
) -> Iterator[None]:
    """Hook modifications into a transformers model while the context is open.

    Args:
        model: the backbone.
        shape: its shape, which knows the sites.
        modifications: changes of hidden states.
    """
    seen = _Seen()
    places: dict[tuple[str, int], list[Modification]] = defaultdict(list)
    for modification in modifications:
        places[modification.site, modification.layer].append(modification)
    read = {(m.reads, m.layer) for m in modifications if m.reads not in AT_SITE}
    handles = []
    try:
        for place, changes in places.items():
            handles.append(hooked(model, shape.place(*place), _Change(changes, seen)))
        for place in read:  # after the changes, so that the changed representation is read
            handles.append(hooked(model, shape.place(*place), _Keep(place, seen)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def hooked(model: nn.Module, site: Site, action: Action) -> RemovableHandle:
    """Call ``action(module, hidden, input)`` at a site, and replace hidden by its result."""
    module = model.get_submodule(site.path)

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = inputs
        return (action(module, hidden, hidden), *rest)

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # Hooks see no input of a module called with keywords only (the embeddings).
        given = inputs[0] if inputs else None
        index, count = site.part
        if count == 1:
            return action(module, output, given)
        parts = [*output.chunk(count, dim=-1)]
        changed = action(module, parts[index], given)
        if changed is parts[index]:
            return output
        parts[index] = changed
        return torch.cat(parts, dim=-1)

    if site.side == "input":
        return module.register_forward_pre_hook(before)
    return module.register_forward_hook(after)


class _Keep:
    """Remember a representation for a modification elsewhere in the block."""

    def __init__(self, place: tuple[str, int], seen: _Seen):
        self.place, self.seen = place, seen

    def __call__(self, module: nn.Module, hidden: Tensor, given: Tensor | None) -> Tensor:
        self.seen[self.place] = hidden
        return hidden


class _Change:
    """Apply all modifications of one site in their order."""

    def __init__(self, changes: list[Modification], seen: _Seen):
        self.changes, self.seen = changes, seen

    def __call__(self, module: nn.Module, hidden: Tensor, given: Tensor | None) -> Tensor:
        for change in self.changes:
            hidden = change.apply(hidden, self._source(change, module, hidden, given))
        return hidden

    def _source(
        self, change: Modification, module: nn.Module, hidden: Tensor, given: Tensor | None
    ) -> Tensor:
        match change.reads:
            case "self":
                return hidden
            case "output":
                return module.forward(hidden)  # calling the module would run its hooks again
            case "input" | "normed":
                if given is None:
                    raise TypeError(
                        f"site '{change.site}': its module is called with keywords only, so a hook "
                        f"does not see its input"
                    )
                return given if change.reads == "input" else _normalized(module, given)
            case site:
                return self.seen[site, change.layer]


def _normalized(module: nn.Module, given: Tensor) -> Tensor:
    """Return a norm's input, normalized, without gain and bias.

    Families have classes of their own: LayerNorms with a bias, RMSNorms without.
    """
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(given, module.normalized_shape, eps=module.eps)
    epsilon = module.variance_epsilon
    assert isinstance(epsilon, float)
    centered = getattr(module, "bias", None) is not None
    normalize = functional.layer_norm if centered else functional.rms_norm
    return normalize(given, given.shape[-1:], eps=epsilon)
