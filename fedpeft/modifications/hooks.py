"""Forward hooks that apply modifications inside an encoder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedpeft.backbones.families import FAMILIES, Site
from fedpeft.modifications import Modification

#: What a modification may read at its own site; any other value names another site of the block.
_AT_SITE = ("input", "self", "normed", "output")
_Seen = dict[tuple[str, int], Tensor]  # representations of other sites, in this forward pass


@contextmanager
def applied(model: nn.Module, family: str, modifications: Sequence[Modification]) -> Iterator[None]:
    """Hook modifications into a transformers encoder while the context is open.

    Args:
        model: the encoder.
        family: its architecture, a key of ``FAMILIES``.
        modifications: changes of hidden states.
    """
    sites, seen = FAMILIES[family], _Seen()
    places: dict[tuple[str, int], list[Modification]] = defaultdict(list)
    for modification in modifications:
        places[modification.site, modification.layer].append(modification)
    read = {(m.reads, m.layer) for m in modifications if m.reads not in _AT_SITE}
    handles = []
    try:
        for place, changes in places.items():
            handles.append(_hook(model, sites[place[0]], place[1], _Change(changes, seen)))
        for place in read:  # after the changes, so that the changed representation is read
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
) -> RemovableHandle:
    """Call ``action(module, hidden, input)`` at a site, and replace hidden by its result."""
    module = model.get_submodule(site.module(layer))

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = inputs
        return (action(module, hidden, hidden), *rest)

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # Hooks see no input of a module called with keywords only (the embeddings).
        return action(module, output, inputs[0] if inputs else None)

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
                if change.reads == "input":
                    return given
                assert isinstance(module, nn.LayerNorm)
                return functional.layer_norm(given, module.normalized_shape, eps=module.eps)
            case site:
                return self.seen[site, change.layer]
