"""Batches: which texts come together, and their padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.tasks.base import IGNORED
from fedpeft.tasks.encoding import Encoded

if TYPE_CHECKING:
    import torch

    from fedpeft.modifications.packing import Packing


@dataclass(frozen=True)
class Batch:
    """A batch as torch tensors: N rows ordered in groups, N = groups * rows a group; T tokens.

    Attributes:
        input_ids: int64 ``[N, T]``.
        attention_mask: int64 ``[N, T]``.
        token_type_ids: int64 ``[N, T]``.
        read: int64 ``[N]``.
        labels: int64 or float ``[N]``; int64 ``[N, T]`` where tokens have labels, padded with
            IGNORED.
        weights: float ``[N]``, 1, or 0 for a row that only fills its group up.
        groups: number of groups.
        below: what was computed of the texts before, each ``[N, T, width]``, where padding has
            the numbers of its text's first token, or ``[N, 1, width]``.
        packing: how the texts pass without their padding; None = as they are.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    read: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    groups: int
    below: tuple[torch.Tensor, ...] = ()
    packing: Packing | None = None


def collate(
    encoded: Sequence[Encoded],
    rows: Sequence[np.ndarray],
    pad_id: int,
    device: torch.device | str,
    dtype: torch.dtype,
    packed: bool = False,
) -> Batch:
    """Return a batch whose group g holds ``rows[g]`` of ``encoded[g]``.

    A group shorter than the longest is filled up with copies of its first row of weight 0, an
    empty one with its shortest text: real texts, so that no padding row can make a NaN.

    Args:
        encoded: the examples of every group, at least one each.
        rows: an index array for every group; not all of them empty.
        pad_id: token id that fills a text up to the longest of the batch.
        device: where the tensors go.
        dtype: of the weights, and of the labels where they are scores.
        packed: let the texts pass through the blocks without their padding.
    """
    import torch

    from fedpeft.modifications.packing import Packing

    width = max(len(chosen) for chosen in rows)
    parts, weights = [], np.zeros((len(rows), width))
    for group, (examples, chosen) in enumerate(zip(encoded, rows, strict=True)):
        filler = chosen[0] if len(chosen) else examples.lengths.argmin()
        fill = np.full(width - len(chosen), filler, dtype=np.int64)
        parts.append(examples.select(np.concatenate([chosen.astype(np.int64), fill])))
        weights[group, : len(chosen)] = 1.0
    lengths = np.concatenate([part.lengths for part in parts])
    mask = np.arange(lengths.max()) < lengths[:, None]  # [N, T], a row's tokens come first
    known = [part.labels for part in parts]
    labels = _padded(known, mask, IGNORED) if parts[0].per_token else np.concatenate(known)
    read = np.concatenate([part.read for part in parts]).astype(np.int64)
    scored = labels.dtype.kind == "f"
    return Batch(
        torch.from_numpy(_padded([part.tokens for part in parts], mask, pad_id)).to(device),
        torch.from_numpy(mask.astype(np.int64)).to(device),
        torch.from_numpy(_padded([part.segments for part in parts], mask, 0)).to(device),
        torch.from_numpy(read).to(device),
        torch.from_numpy(labels).to(device, dtype if scored else torch.int64),
        torch.from_numpy(weights.reshape(-1)).to(device, dtype),
        len(rows),
        tuple(_padded_states(each, mask) for each in zip(*(p.below for p in parts), strict=True)),
        Packing.of(mask, len(rows), device, dtype) if packed else None,
    )


def _padded(parts: Sequence[np.ndarray], mask: np.ndarray, fill: int) -> np.ndarray:
    """Return int64 ``[N, T]`` with the numbers of ``parts``, row after row, where the mask is."""
    result = np.full(mask.shape, fill, dtype=np.int64)
    result[mask] = np.concatenate(parts)
    return result


def _padded_states(parts: Sequence[torch.Tensor], mask: np.ndarray) -> torch.Tensor:
    """Return ``[N, T, width]`` of representations token by token; those of texts as they are."""
    import torch

    states = torch.cat(list(parts))
    if states.dim() == 3:
        return states
    from fedpeft.modifications.packing import own_first

    places = np.empty(mask.shape, dtype=np.int64)
    places[mask] = np.arange(len(states))
    return states[torch.from_numpy(own_first(places, mask)).to(states.device)]


def batches(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator | None
) -> list[np.ndarray]:
    """Return the index arrays of one epoch: every row once, the last batch may be smaller.

    With a generator, rows of similar length come together so that little is padded: rows are
    shuffled, sorted by length within chunks of up to 50 batches, cut into batches, and the
    batches are shuffled. Without one, rows come in order of length, for evaluation.
    """
    count = len(lengths)
    if generator is None:
        return _cut(np.argsort(lengths, kind="stable"), batch_size)
    # At least four chunks: else a small client would see the same batches in every epoch.
    chunk = batch_size * min(50, max(1, count // (4 * batch_size)))
    parts = []
    for rows in _cut(generator.permutation(count), chunk):
        parts += _cut(rows[np.argsort(lengths[rows], kind="stable")], batch_size)
    return [parts[i] for i in generator.permutation(len(parts))]


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
