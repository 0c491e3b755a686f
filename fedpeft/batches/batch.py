"""Batches: the rows of each batch of an epoch, and the padded tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.batches.encoded import IGNORED, Encoded

if TYPE_CHECKING:
    import torch

    from fedpeft.batches.packing import Packing


EVALUATION_BATCH = 64  # texts in a pass of evaluation
#: Tokens in a pass of evaluation on a GPU, so that the calls take a small part of its time: on an
#: H100, RoBERTa-base in bfloat16 took 7 ms for 64 to 4,096 tokens and 14 ms for 16,384.
_GPU_TOKENS = 1 << 15


@dataclass(frozen=True)
class Batch:
    """A batch as torch tensors: N rows ordered in groups, N = groups * rows a group; T tokens.

    If an example has two texts that pass on their own, they are neighbors: the first four have 2 N
    rows, and ``states`` of tokens.

    Attributes:
        input_ids: int64 ``[N, T]``.
        attention_mask: int64 ``[N, T]``.
        token_type_ids: int64 ``[N, T]``.
        read: int64 ``[N]``.
        labels: int64 or float ``[N]``; int64 ``[N, T]`` where tokens have labels, padded with
            IGNORED, or ``[N, S]`` for the S tokens of a decoder behind an encoder.
        weights: float ``[N]``, 1, or 0 for a row that only fills up its group.
        groups: number of groups.
        states: hidden states computed before, ``[N, T, width]``, where padding has the state of
            its text's first token, or ``[N, 1, width]``.
        packing: removes the padding in the forward pass; None = padded.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    read: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    groups: int
    states: torch.Tensor | None = None
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

    Shorter groups are filled up with copies of their shortest row, with weight 0, and empty groups
    with their client's shortest text. These are real texts, so that filling cannot produce a NaN.

    Args:
        encoded: examples of each group, at least one.
        rows: index array of each group; not all are empty.
        pad_id: token id that pads texts to the longest of the batch.
        device: device of the tensors.
        dtype: dtype of the weights, and of labels that are scores.
        packed: whether the texts pass through the blocks without their padding.
    """
    import torch

    from fedpeft.batches.packing import Packing

    width = max(len(chosen) for chosen in rows)
    parts, weights = [], np.zeros((len(rows), width))
    for group, (examples, chosen) in enumerate(zip(encoded, rows, strict=True)):
        known = chosen if len(chosen) else np.arange(len(examples))
        filler = known[examples.lengths[known].argmin()]
        fill = np.full(width - len(chosen), filler, dtype=np.int64)
        parts.append(examples.select(np.concatenate([chosen.astype(np.int64), fill])))
        weights[group, : len(chosen)] = 1.0
    lengths = np.concatenate([part.text_lengths for part in parts])
    mask = np.arange(lengths.max()) < lengths[:, None]  # [N, T], a row's tokens come first
    labels = np.concatenate([part.labels for part in parts])
    if parts[0].per_token:
        counts = np.concatenate([part.label_lengths for part in parts])
        labels = _padded([labels], np.arange(counts.max()) < counts[:, None], IGNORED)
    read = np.concatenate([np.repeat(part.read, part.apart) for part in parts]).astype(np.int64)
    scored = labels.dtype.kind == "f"
    return Batch(
        torch.from_numpy(_padded([part.tokens for part in parts], mask, pad_id)).to(device),
        torch.from_numpy(mask.astype(np.int64)).to(device),
        torch.from_numpy(_padded([part.segments for part in parts], mask, 0)).to(device),
        torch.from_numpy(read).to(device),
        torch.from_numpy(labels).to(device, dtype if scored else torch.int64),
        torch.from_numpy(weights.reshape(-1)).to(device, dtype),
        len(rows),
        _padded_states([part.states for part in parts], mask),
        Packing.of(mask, len(rows), device, dtype) if packed else None,
    )


def _padded(parts: Sequence[np.ndarray], mask: np.ndarray, fill: int) -> np.ndarray:
    """Return int64 ``[N, T]``: the numbers of ``parts`` under the mask, otherwise ``fill``."""
    result = np.full(mask.shape, fill, dtype=np.int64)
    result[mask] = np.concatenate(parts)
    return result


def _padded_states(parts: Sequence[torch.Tensor | None], mask: np.ndarray) -> torch.Tensor | None:
    """Return the states of tokens padded, ``[N, T, width]``, or those of texts unchanged.

    Return None if not all parts have states.
    """
    import torch

    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    states = torch.cat(known)
    if states.dim() == 3:
        return states
    from fedpeft.batches.packing import fill_with_first

    places = np.empty(mask.shape, dtype=np.int64)
    places[mask] = np.arange(len(states))
    return states[torch.from_numpy(fill_with_first(places, mask)).to(states.device)]


def batches(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator | None
) -> list[np.ndarray]:
    """Return the index arrays of one epoch: every row once; the last batch may be smaller.

    With a generator, rows are shuffled, sorted by length within chunks of up to 50 batches to save
    padding, and cut into batches, which are shuffled. Without one, rows come in order of length,
    for evaluation.
    """
    count = len(lengths)
    if generator is None:
        return _cut(np.argsort(lengths, kind="stable"), batch_size)
    # At least four chunks: with one, a small client would see the same batches in every epoch.
    chunk = batch_size * min(50, max(1, count // (4 * batch_size)))
    parts = []
    for rows in _cut(generator.permutation(count), chunk):
        parts += _cut(rows[np.argsort(lengths[rows], kind="stable")], batch_size)
    return [parts[i] for i in generator.permutation(len(parts))]


def evaluation_batch(
    lengths: np.ndarray, device: torch.device, least: int = EVALUATION_BATCH
) -> int:
    """Return the number of texts in a pass without gradients: ``least``, or more on CUDA."""
    if device.type != "cuda":
        return least
    return max(least, _GPU_TOKENS // int(lengths.max(initial=1)))


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
