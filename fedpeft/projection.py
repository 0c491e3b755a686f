"""Fixed random projections that are the same to the bit on every machine.

Clients never receive a projection: they make it from the seed. Entry (i, j) (row i = activation
coordinate, column j = coordinate of z) is sample t = j * rows + i of a counter-based stream, so
that device, system and library version cannot change it, and the projection of a smaller d is a
prefix of a larger one.

The stream: Philox 4x64-10, key = first 16 bytes of SHA-256 of
``fedpeft-projection-v1|{seed}|{name}``, counter 0; words are read little-endian as four 16-bit
samples u, low half-word first; a table turns u into a number of unit variance:
normal ``float32(ndtri((u + 0.5) / 65536))``,
uniform ``float32(((u + 0.5) / 65536 - 0.5) * sqrt(12))``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from fedpeft.randomness import philox

Distribution = Literal["normal", "uniform", "identity"]

_LEVELS = 65536  # one table entry for each 16-bit sample
_DIGEST_SAMPLES = 4096


@dataclass(frozen=True)
class Projection:
    """A fixed matrix [rows, columns] named ``{method}/{site}/{layer}``.

    ``identity`` draws nothing and needs rows == columns.
    """

    seed: int
    name: str
    rows: int
    columns: int
    distribution: Distribution

    def transposed(self) -> np.ndarray:
        """Return the matrix transposed, float32 [columns, rows], entries of unit variance."""
        if self.distribution == "identity":
            return np.eye(self.columns, self.rows, dtype=np.float32)
        return self.samples(self.rows * self.columns).reshape(self.columns, self.rows)

    def samples(self, count: int) -> np.ndarray:
        """Return the first ``count`` samples of the stream, float32 [count]."""
        words = philox(f"fedpeft-projection-v1|{self.seed}|{self.name}").random_raw(-(-count // 4))
        return table(self.distribution)[words.astype("<u8", copy=False).view("<u2")[:count]]


@cache
def table(distribution: Distribution) -> np.ndarray:
    """Return the number of each 16-bit sample, float32 [65536], mean 0 and variance 1."""
    middle = (np.arange(_LEVELS) + 0.5) / _LEVELS
    if distribution == "uniform":
        return ((middle - 0.5) * np.sqrt(12)).astype(np.float32)
    from scipy.special import ndtri

    return ndtri(middle).astype(np.float32)


def digest(projections: Iterable[Projection]) -> str:
    """Return a SHA-256 that differs when any entry of any projection could differ.

    Covers the names and shapes, the tables, and the start of each stream: later words come
    from the same integer arithmetic, and hashing gigabytes at each handshake would buy nothing.
    """
    total = hashlib.sha256()
    for projection in projections:
        total.update(f"{projection}".encode())
        if projection.distribution != "identity":
            count = min(_DIGEST_SAMPLES, projection.rows * projection.columns)
            total.update(table(projection.distribution).tobytes())
            total.update(projection.samples(count).tobytes())
    return total.hexdigest()
