"""Pass texts of different lengths through the network without their padding.

Padded texts have shape [N, T, width]. In a block, only the attention relates tokens, so the texts
of a group can be concatenated into one row, [G, M, width], where M is the number of tokens of the
largest group; with one client, no token is padding. The attention gets its queries, keys and
values padded again, with the usual mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """The places of a padded batch's tokens in its packed form, and the way back.

    Attributes:
        origin: flat place in [N, T] of each packed token, int64 [G * M].
        places: flat place in [G, M] of each padded token, int64 [N * T]; padding has the place of
            its text's first token, so that it never holds numbers of another text.
        is_text: 1 for the tokens of texts, 0 for padding, [N * T, 1].
        filled: 1 for the tokens of texts, 0 for those that fill up a group, [G * M, 1].
        texts: the text of each packed token, int64 [G * M]; a token that fills up a group is
            padding of its text.
        shape: N and T.
        groups: G.
    """

    origin: Tensor
    places: Tensor
    is_text: Tensor
    filled: Tensor
    texts: Tensor
    shape: tuple[int, int]
    groups: int

    @classmethod
    def of(
        cls, mask: np.ndarray, groups: int, device: torch.device | str, dtype: torch.dtype
    ) -> Packing | None:
        """Return the packing of texts; None if there is no padding to save.

        Args:
            mask: True for tokens of texts, bool [N, T]; each text has at least one.
            groups: number of groups, each of N / groups texts.
            device: device of the tensors.
            dtype: dtype of the hidden states.
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
        places = fill_with_first(places.reshape(mask.shape), mask).ravel()

        def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        return cls(
            tensor(flat, torch.int64),
            tensor(places, torch.int64),
            tensor(mask.reshape(-1, 1), dtype),
            tensor(filled.reshape(-1, 1), dtype),
            tensor(flat // mask.shape[1], torch.int64),
            mask.shape,
            groups,
        )

    def pack(self, padded: Tensor) -> Tensor:
        """Return [G, M, ...] of [N, T, ...]."""
        rows = _Move.apply(
            padded.flatten(0, 1), self.origin, self.places, self.is_text, self.filled
        )
        return rows.unflatten(0, (self.groups, -1))

    def unpack(self, packed: Tensor) -> Tensor:
        """Return [N, T, ...] of [G, M, ...]; padding has the numbers of its text's first token."""
        rows = _Move.apply(
            packed.flatten(0, 1), self.places, self.origin, self.filled, self.is_text
        )
        return rows.unflatten(0, self.shape)

    def spread(self, rows: Tensor) -> Tensor:
        """Return [G * M, ...] of a row for each text, [N, ...]: each token gets its text's row.

        With a row for each of several neighboring texts, they share it. The backward pass adds up
        the gradients of each text's tokens, always in the same order. A NaN gradient stays in its
        text; a product with a matrix of 0 and 1 would spread it.
        """
        return _Spread.apply(rows, self)


def fill_with_first(places: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return places [N, T] with those of padding replaced by that of the row's first token."""
    return np.where(mask, places, places[:, :1])


class _Spread(torch.autograd.Function):
    """Select the row of each token's text; the backward pass sums over the tokens of a text."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, packing: Packing) -> Tensor:
        """Return [G * M, ...] of ``rows`` [N, ...]."""
        ctx.packing, ctx.rows = packing, len(rows)
        return rows.index_select(0, packing.texts // (packing.shape[0] // len(rows)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the rows.

        Not by ``index_add``, whose order of additions differs from run to run on a GPU.
        """
        packing = ctx.packing
        flat = gradient.flatten(1)
        moved = flat.index_select(0, packing.places) * packing.is_text.to(flat.dtype)
        summed = moved.unflatten(0, (ctx.rows, -1)).sum(1)
        return summed.view(-1, *gradient.shape[1:]), None


class _Move(torch.autograd.Function):
    """Select rows of a tensor by their places; the backward pass moves the gradients back.

    Padding is never read, so its gradient is zero, and each row has at most one other gradient:
    the backward pass needs no sums either.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, places: Tensor, back: Tensor, used: Tensor, given: Tensor
    ) -> Tensor:
        """Return ``rows[places]``.

        Args:
            ctx: autograd's context.
            rows: the tensor, one row for each token.
            places: row of ``rows`` of each row of the result.
            back: row of the result of each row of ``rows``.
            used: 1 for rows of ``rows`` that are tokens of texts, 0 for padding.
            given: the same for rows of the result.
        """
        ctx.save_for_backward(places, back, used, given)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of ``rows``."""
        places, back, used, given = ctx.saved_tensors
        flat = gradient.flatten(1)
        moved = _Move.apply(flat, back, places, given, used) * used.to(flat.dtype)
        return moved.view(-1, *gradient.shape[1:]), None, None, None, None
