"""Passing texts of all lengths through the network without their padding.

Padded texts are [N, T, width]. Everything in a block but the attention treats each token by itself,
so the texts of a group can stand one after the other in one row, [G, M, width], M the tokens of the
longest group: of one client none is padding. The attention gets its queries, keys and values
padded again, and masked as always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded batch stand in its packed form, and back.

    Attributes:
        origin: flat place in [N, T] of every packed token, int64 [G * M].
        places: flat place in [G, M] of every padded token, int64 [N * T]; padding has that of its
            own text's first token, as numbers of another text must not come near.
        is_text: 1 for the tokens of texts, 0 for padding, [N * T, 1].
        filled: 1 for the tokens of texts, 0 where a group is filled up, [G * M, 1].
        shape: N and T.
        groups: G.
    """

    origin: Tensor
    places: Tensor
    is_text: Tensor
    filled: Tensor
    shape: tuple[int, int]
    groups: int

    @classmethod
    def of(
        cls, mask: np.ndarray, groups: int, device: torch.device | str, dtype: torch.dtype
    ) -> Packing | None:
        """Return the packing of texts; None if it would leave as much padding as there is.

        Args:
            mask: which tokens are of a text, bool [N, T]; each text has at least one.
            groups: number of groups, of N / groups texts each.
            device: where the tensors go.
            dtype: of the model's numbers.
        """
        grouped = mask.reshape(groups, -1)
        counts = grouped.sum(1)
        most = int(counts.max())
        if most == grouped.shape[1]:
            return None
        origin = np.argsort(~grouped, axis=1, kind="stable")[:, :most]  # texts first, in order
        filled = np.arange(most) < counts[:, None]
        flat = (origin + np.arange(groups)[:, None] * grouped.shape[1]).ravel()
        places = np.empty(mask.size, dtype=np.int64)
        places[flat[filled.ravel()]] = np.flatnonzero(filled)
        places = own_first(places.reshape(mask.shape), mask).ravel()

        def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        return cls(
            tensor(flat, torch.int64),
            tensor(places, torch.int64),
            tensor(mask.reshape(-1, 1), dtype),
            tensor(filled.reshape(-1, 1), dtype),
            mask.shape,
            groups,
        )

    def pack(self, padded: Tensor) -> Tensor:
        """Return [G, M, ...] of [N, T, ...]."""
        found = _Move.apply(
            padded.flatten(0, 1), self.origin, self.places, self.is_text, self.filled
        )
        return found.unflatten(0, (self.groups, -1))

    def unpack(self, packed: Tensor) -> Tensor:
        """Return [N, T, ...] of [G, M, ...]; padding has those of its text's first token."""
        found = _Move.apply(
            packed.flatten(0, 1), self.places, self.origin, self.filled, self.is_text
        )
        return found.unflatten(0, self.shape)


def own_first(places: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return places [N, T] in which padding has that of its row's first token."""
    return np.where(mask, places, places[:, :1])


class _Move(torch.autograd.Function):
    """Rows of a tensor by their places; the gradients go the way back.

    What stands at padding is never read, so its gradient is zero, and no row has more than one
    gradient that is not: the backward pass, too, only moves rows.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, places: Tensor, back: Tensor, used: Tensor, given: Tensor
    ) -> Tensor:
        """Return ``rows[places]``; ``used`` and ``given`` say which rows of each are a text's."""
        ctx.save_for_backward(places, back, used, given)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return each row's gradient."""
        places, back, used, given = ctx.saved_tensors
        flat = gradient.flatten(1)
        found = _Move.apply(flat, back, places, given, used) * used.to(flat.dtype)
        return found.view(-1, *gradient.shape[1:]), None, None, None, None
