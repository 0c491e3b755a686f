"""Levels that add up: a vector in a few bits per number, for sums of many clients.

All clients of a round share the rotation (``fedpeft.wire.rotation``) and the distance of the
levels, so the sum of their levels is the level of their sum, up to rounding. Each rotated number is
rounded up or down at random, with its own value as the mean (QSGD, Alistarh et al. 2017; for sums:
Suresh et al. 2017). Numbers beyond the outermost levels are clamped to them: of a vector of the
largest norm, 1 in 370 at 4 bits and more, and 1 in 7.5 at one bit, where wider spacing would cost
more.
"""

from __future__ import annotations

import numpy as np

from fedpeft.wire.rotation import Rotation, block_lengths, blocks

MOST_BITS = 8
#: The outermost level by bits, in root mean squares of the numbers of a vector of the largest norm.
_REACH = {1: 1.5, 2: 2.0, 3: 2.5}
_FURTHEST = 3.0


def count_of(bits: int) -> int:
    """Return the number of levels."""
    return 1 << bits


def encode(
    vector: np.ndarray,
    bits: int,
    clip_norm: float,
    shared: np.random.Generator,
    own: np.random.Generator,
) -> np.ndarray:
    """Return the levels of a vector [n], uint64 [n] below ``count_of(bits)``.

    Args:
        vector: float64, of a norm of at most ``clip_norm``.
        bits: per number.
        clip_norm: the largest norm.
        shared: draws the rotation, in the same state at all clients of a round.
        own: draws the rounding.
    """
    highest = count_of(bits) - 1
    places = rotated(vector, shared) / distance(len(vector), bits, clip_norm) + highest / 2
    floor = np.floor(places)
    rounded = floor + (own.random(len(places)) < places - floor)
    return np.clip(rounded, 0, highest).astype(np.uint64)


def decode(
    total: np.ndarray, vectors: int, bits: int, clip_norm: float, shared: np.random.Generator
) -> np.ndarray:
    """Return the sum [n] of ``vectors`` vectors from the sum of their levels [n]."""
    centered = total.astype(np.float64) - vectors * (count_of(bits) - 1) / 2
    return turned_back(centered * distance(len(total), bits, clip_norm), shared)


def rotated(vector: np.ndarray, shared: np.random.Generator) -> np.ndarray:
    """Return a vector [n] after the rotation that ``shared`` draws."""
    parts = blocks(vector, block_lengths(len(vector)))
    return np.concatenate([Rotation(len(part), shared).apply(part) for part in parts])


def turned_back(vector: np.ndarray, shared: np.random.Generator) -> np.ndarray:
    """Return the vector [n] of one after the rotation that ``shared`` draws."""
    parts = blocks(vector, block_lengths(len(vector)))
    return np.concatenate([Rotation(len(part), shared).undo(part) for part in parts])


def distance(size: int, bits: int, clip_norm: float) -> float:
    """Return the distance of two levels."""
    reach = _REACH.get(bits, _FURTHEST) * clip_norm / np.sqrt(size)
    return float(2 * reach / (count_of(bits) - 1))
