"""A cache of the hidden states below the first block that a method changes.

A client sees its texts in every epoch and every round, and the frozen network computes the same
states each time. ``KeptStates`` computes the states of all texts of a client together, in an order
that depends only on these texts, and keeps them while there is room. Cached and recomputed states
are equal to the bit, so results do not depend on restarts, the engine or the other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.batch import Batch, batches, evaluation_batch
from fedpeft.batches.encoded import Encoded

_TOGETHER = 16  # texts computed in one pass: larger passes of a small client are half padding


class KeptStates:
    """A cache of hidden states by the texts of a client.

    Args:
        compute: returns the states of a batch, [N, T, width], or with ``per_text`` [N, 1, width].
        collate: returns the batch of some rows of some texts.
        row_bytes: size of one row of states, [width].
        per_text: whether each text has one row of states; otherwise each token has one.
        limit: maximum bytes kept, on the model's device; 0 = no cache.
        device: device of the model.

    Attributes:
        limit: maximum bytes kept.
        size: bytes kept now.
    """

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        collate: Callable[[Sequence[Encoded], Sequence[np.ndarray]], Batch],
        row_bytes: int,
        per_text: bool,
        limit: int,
        device: torch.device,
    ):
        self._device = device
        self._compute, self._collate = compute, collate
        self._row_bytes, self._per_text, self.limit = row_bytes, per_text, limit
        self._kept: dict[bytes, Tensor] = {}
        self.size = 0

    def attach(self, cohort: Sequence[Encoded]) -> list[Encoded]:
        """Return the texts of each client with their states.

        Return all texts unchanged if a client has no texts or if their states exceed the limit.
        """
        sizes = [self._rows(texts) * self._row_bytes for texts in cohort]
        if not all(sizes) or sum(sizes) > self.limit:
            return [*cohort]
        keys = [_digest(texts) for texts in cohort]
        for key, texts, size in zip(keys, cohort, sizes, strict=True):
            if key not in self._kept:
                self._make_room(size, {*keys})
                self._kept[key] = self._states_of(texts)
                self.size += size
        return [
            replace(texts, states=self._kept[key]) for texts, key in zip(cohort, keys, strict=True)
        ]

    def _make_room(self, size: int, needed: set[bytes]) -> None:
        """Drop the newest states that are not needed until ``size`` bytes fit.

        Clients take turns, so the oldest states are the next to be needed.
        """
        for key in [key for key in reversed(self._kept) if key not in needed]:
            if self.size + size <= self.limit:
                return
            self.size -= self._kept.pop(key).nbytes

    def _rows(self, texts: Encoded) -> int:
        return len(texts) if self._per_text else len(texts.tokens)

    def _states_of(self, texts: Encoded) -> Tensor:
        """Return the states of all texts, in their order: [total, width] or [n, 1, width]."""
        ordered: Tensor | None = None
        size = evaluation_batch(texts.lengths, self._device, least=_TOGETHER)
        for rows in batches(texts.lengths, size, None):
            batch = self._collate([texts], [rows])
            states = self._compute(batch)
            if not self._per_text:
                states, rows = states[batch.attention_mask.bool()], texts.places(rows)
            if ordered is None:
                ordered = states.new_empty(self._rows(texts), *states.shape[1:])
            ordered[torch.from_numpy(rows).to(states.device)] = states
        assert ordered is not None  # ``attach`` returns early if a client has no texts
        return ordered


def _digest(texts: Encoded) -> bytes:
    """Return a key of the texts as the backbone and the head see them."""
    total = blake2b(digest_size=16)
    for array in (texts.tokens, texts.segments, texts.offsets, texts.read, texts.firsts):
        total.update(b"" if array is None else array.tobytes())
    return total.digest()
