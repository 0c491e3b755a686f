"""What lies below the first change, computed once for texts that come again.

A client sees its texts in every epoch and every round, and below the first modification the
frozen network always makes the same of them: the first block up to its feed-forward network's
product with SLaSh, everything with linear probing. ``KeptStates`` computes that for all texts of
a client together, in an order of its own, and keeps it as long as there is room. Whether it was
kept or is computed anew changes no bit, so neither does a restart, the engine, or who else trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedpeft.tasks.batching import collate
from fedpeft.tasks.encoding import Encoded
from fedpeft.tasks.parts import parts_by_length

if TYPE_CHECKING:
    from fedpeft.model import TaskModel

_MOST = 64  # texts computed together


class KeptStates:
    """The states below a model's first change, of texts that were asked for.

    Args:
        model: the task model.
        most: bytes kept, on the model's device; 0 = none.

    Attributes:
        size: bytes kept now.
    """

    def __init__(self, model: TaskModel, most: int):
        self._model, self._most = model, most
        self._kept: dict[bytes, tuple[Tensor, ...]] = {}
        self.size = 0

    def attach(self, together: Sequence[Encoded]) -> list[Encoded]:
        """Return the texts of some clients with the states below the first change.

        All come back as they are if nothing lies below, or if theirs would take more than may be
        kept.
        """
        needed = [self._needed(texts) for texts in together]
        if sum(needed) > self._most:
            return [*together]
        keys = [_digest(texts) for texts in together]
        for key, texts, size in zip(keys, together, needed, strict=True):
            if key not in self._kept:
                self._make_room(size, {*keys})
                self._kept[key] = self._compute(texts)
                self.size += _bytes(self._kept[key])
        return [
            replace(texts, below=self._kept[key]) for texts, key in zip(together, keys, strict=True)
        ]

    def _make_room(self, size: float, wanted: set[bytes]) -> None:
        """Drop what was made last, but nothing that is wanted, until ``size`` bytes fit.

        Clients take turns: the one made first is back first, and would else just have been dropped.
        """
        for key in [key for key in reversed(self._kept) if key not in wanted]:
            if self.size + size <= self._most:
                return
            self.size -= _bytes(self._kept.pop(key))

    def _needed(self, texts: Encoded) -> float:
        """Return the bytes that some texts' states take at most; infinity if there are none."""
        model = self._model
        if model.cut is None or not len(texts):
            return float("inf")
        rows = len(texts) if self._per_text else len(texts.tokens)
        return rows * model.cut.representations * model.method.shape.width * model.dtype.itemsize

    @property
    def _per_text(self) -> bool:
        """Whether the head's representation of each text is all that is needed."""
        return self._model.ends_below and self._model.kind != "tags"

    def _compute(self, texts: Encoded) -> tuple[Tensor, ...]:
        """Return the states of all texts, in their order, computed in order of length."""
        model = self._model
        device, pad_id = model.backbone.device, model.backbone.tokenizer.pad_token_id
        result: tuple[Tensor, ...] = ()
        everything = np.arange(len(texts))
        for (rows,) in parts_by_length([texts], [everything], model.costs.each, _MOST):
            batch = collate([texts], [rows], pad_id, device, model.dtype)
            found = model.below(batch)
            if not self._per_text:
                found = tuple(each[batch.attention_mask.bool()] for each in found)
            if not result:
                count = len(texts) if self._per_text else len(texts.tokens)
                result = tuple(each.new_empty(count, *each.shape[1:]) for each in found)
            places = torch.from_numpy(rows if self._per_text else texts.places(rows)).to(device)
            for whole, part in zip(result, found, strict=True):
                whole[places] = part
        return result


def _bytes(states: tuple[Tensor, ...]) -> int:
    return sum(each.nbytes for each in states)


def _digest(texts: Encoded) -> bytes:
    """Return what names the texts as the backbone and the head see them."""
    total = blake2b(digest_size=16)
    for array in (texts.tokens, texts.segments, texts.offsets, texts.read):
        total.update(array.tobytes())
    return total.digest()
