"""Gradient checkpointing: keep the inputs of each block, and recompute it in the backward pass.

Chen et al. 2016 (arXiv 1604.06174), with one segment for each block. transformers' own
checkpointing works only in training mode, which also switches dropout on, and its second pass would
come after the hooks of the first are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.modifications import Modification
from fedpeft.modifications.hooks import applied


@contextmanager
def recomputed(
    model: nn.Module, shape: BackboneShape, modifications: Sequence[Modification]
) -> Iterator[None]:
    """Hook modifications into a model as ``applied`` does, and checkpoint each block.

    While the context is open, each block is wrapped in a module that hooks the block's changes in
    for the forward pass and again for the recomputation. Changes outside the blocks are hooked in
    for the forward pass only.

    Args:
        model: the backbone.
        shape: its shape, which knows the sites.
        modifications: changes of hidden states.
    """
    outside = shape.sites.outer
    places = [_place(shape, layer) for layer in range(shape.layers)]
    blocks = [model.get_submodule(path) for path in places]
    try:
        for layer, (path, block) in enumerate(zip(places, blocks, strict=True)):
            changes = [m for m in modifications if m.site not in outside and m.layer == layer]
            _put(model, path, _Recomputed(block, partial(applied, model, shape, changes)))
        with applied(model, shape, [m for m in modifications if m.site in outside]):
            yield
    finally:
        for path, block in zip(places, blocks, strict=True):
            _put(model, path, block)


class _Recomputed(nn.Module):
    """A block that is recomputed in the backward pass instead of keeping its activations.

    Args:
        block: the block; its attributes are also those of this module.
        changing: returns a context in which the block's changes are hooked in.
    """

    def __init__(self, block: nn.Module, changing: Callable[[], AbstractContextManager[None]]):
        super().__init__()
        self.recomputed_block, self._changing = block, changing

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("recomputed_block"), name)

    def forward(self, *inputs: Any, **given: Any) -> Any:
        """Return the outputs of the block."""

        def run(*inputs: Any) -> Any:
            with self._changing():
                return self.recomputed_block(*inputs, **given)

        # The blocks draw no random numbers, so their generators need not be restored.
        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)


def _place(shape: BackboneShape, layer: int) -> str:
    stack, inside = shape.stack(layer)
    return stack.path.format(layer=inside)


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    blocks, _, index = path.rpartition(".")
    setattr(model.get_submodule(blocks), index, module)
