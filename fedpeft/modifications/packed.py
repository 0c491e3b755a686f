"""Modifications that differ from text to text, applied to packed texts.

A modification of a group applies to packed texts as it is. One with a row for each text, as
per-example gradients need it, has to know which tokens belong to which text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedpeft.batches.packing import Packing
from fedpeft.modifications import Modification


@dataclass(frozen=True)
class PerText(Modification):
    """A modification with a row for each of N texts, at a site whose texts may be packed."""

    inner: Modification
    packing: Packing
    reads: str = field(default="self", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; ``hidden`` is packed, [G, M, width], or not, [N, T, width]."""
        packing, inner = self.packing, self.inner
        if len(hidden) != packing.groups:  # a site before the blocks
            return inner.apply(hidden, source)
        if inner.elementwise:
            return inner.map(packing.spread).apply(hidden, source)
        padded = packing.unpack(hidden)
        read = padded if source is hidden else packing.unpack(source)
        return packing.pack(inner.apply(padded, read))


def per_text(modifications: Sequence[Modification], packing: Packing | None) -> list[Modification]:
    """Return modifications of packed texts, whose tensors may have a row for each text."""
    if packing is None:
        return [*modifications]

    def wrapped(change: Modification) -> Modification:
        rows = len(next(iter(change.tensors().values())))
        if rows == packing.groups:
            return change
        return PerText(change.site, change.layer, change, packing, reads=change.reads)

    return [wrapped(change) for change in modifications]
