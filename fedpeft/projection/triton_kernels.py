"""CUDA kernel that generates a projection while it multiplies; requires Triton.

A program computes a tile of the result: groups by kept numbers (rows in the forward pass, columns
in the transposed pass). It loops over its part of the summed axis, generates a tile of entries from
the stream in each step, and multiplies. The matrix is never in the device's memory; the table of
256 KB fits the caches.

Philox 4x64-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import triton
import triton.language as tl

MULTIPLIER_0 = tl.constexpr(0xD2E7470EE14C6C93)
MULTIPLIER_1 = tl.constexpr(0xCA5A826395121157)
WEYL_0 = tl.constexpr(0x9E3779B97F4A7C15)
WEYL_1 = tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _words(block: tl.tensor, key_0: tl.tensor, key_1: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return the four 64-bit words of blocks of the stream, each with the blocks' shape."""
    first = block.to(tl.uint64) + 1  # numpy increments the counter before it draws a block
    second = tl.zeros_like(first)
    third = tl.zeros_like(first)
    fourth = tl.zeros_like(first)
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(first, MULTIPLIER_0)
        high_1 = tl.umulhi(third, MULTIPLIER_1)
        low_0 = first * MULTIPLIER_0
        low_1 = third * MULTIPLIER_1
        first = high_1 ^ second ^ key_0
        second = low_1
        third = high_0 ^ fourth ^ key_1
        fourth = low_0
        key_0 += WEYL_0
        key_1 += WEYL_1
    return first, second, third, fourth


@triton.jit
def _aligned(
    column: tl.tensor,
    row_start: tl.tensor,
    rows: tl.tensor,
    key_0: tl.tensor,
    key_1: tl.tensor,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Return 16-bit samples [columns, ROWS]; rows and row_start are multiples of 16.

    A block of the stream is then 16 neighbors in one column, and none is drawn twice.
    """
    near = (row_start // 16 + tl.arange(0, ROWS // 16)).to(tl.int64)
    block = column[:, None] * (rows // 16) + near[None, :]
    first, second, third, fourth = _words(block, key_0, key_1)
    words = tl.interleave(tl.interleave(first, third), tl.interleave(second, fourth))
    halves = tl.interleave(words.to(tl.uint32), (words >> 32).to(tl.uint32))
    return tl.interleave(halves & 0xFFFF, halves >> 16)


@triton.jit
def _ragged(
    column: tl.tensor,
    row_start: tl.tensor,
    rows: tl.tensor,
    key_0: tl.tensor,
    key_1: tl.tensor,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Return 16-bit samples [columns, ROWS], drawing one block per sample; slower."""
    row = (row_start + tl.arange(0, ROWS)).to(tl.int64)
    sample = column[:, None] * rows + row[None, :]
    first, second, third, fourth = _words(sample // 16, key_0, key_1)
    place = (sample % 16).to(tl.uint64)
    low = tl.where(place < 4, first, second)
    high = tl.where(place < 12, third, fourth)
    word = tl.where(place < 8, low, high)
    return ((word >> (place % 4 * 16)) & 0xFFFF).to(tl.uint32)


@triton.jit
def multiply(
    x: tl.tensor,  # [groups, columns], or [groups, rows] if TRANSPOSED
    key: tl.tensor,  # [2], the 64-bit words of the stream's key
    table: tl.tensor,  # [65536], the number for each sample
    parts: tl.tensor,  # [splits, groups, rows], or [splits, groups, columns] if TRANSPOSED
    groups: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    steps: tl.tensor,  # tiles of the summed axis per split
    TRANSPOSED: tl.constexpr,
    ALIGNED: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Multiply x with the projection's transpose (or the projection), in float32."""
    key_0 = tl.load(key).to(tl.uint64, bitcast=True)
    key_1 = tl.load(key + 1).to(tl.uint64, bitcast=True)
    KEPT: tl.constexpr = COLUMNS if TRANSPOSED else ROWS
    SUMMED: tl.constexpr = ROWS if TRANSPOSED else COLUMNS
    kept = columns if TRANSPOSED else rows
    summed = rows if TRANSPOSED else columns
    kept_start = tl.program_id(0) * KEPT
    split = tl.program_id(1)
    group = (tl.program_id(2) * GROUPS + tl.arange(0, GROUPS)).to(tl.int64)
    total = tl.zeros((GROUPS, KEPT), tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        start = step * SUMMED
        at = start + tl.arange(0, SUMMED)
        inside = (group[:, None] < groups) & (at[None, :] < summed)
        tile = tl.load(x + group[:, None] * summed + at[None, :], mask=inside, other=0.0)
        column = ((kept_start if TRANSPOSED else start) + tl.arange(0, COLUMNS)).to(tl.int64)
        row_start = start if TRANSPOSED else kept_start
        if ALIGNED:
            samples = _aligned(column, row_start, rows, key_0, key_1, ROWS)
        else:
            samples = _ragged(column, row_start, rows, key_0, key_1, ROWS)
        entries = tl.load(table + samples.to(tl.int32))  # [COLUMNS, ROWS]; x is 0 beyond the edge
        if TRANSPOSED:
            entries = tl.trans(entries)
        # tf32 would round the entries.
        total = tl.dot(tile, entries, total, input_precision="ieee")
    at_kept = kept_start + tl.arange(0, KEPT)
    place = (split * groups + group[:, None]) * kept + at_kept[None, :]
    tl.store(parts + place, total, mask=(group[:, None] < groups) & (at_kept[None, :] < kept))
