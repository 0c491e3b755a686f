"""Fixed random projections, bit-identical on every machine.

Clients never receive a projection; they generate it from the seed. Entry (i, j) (row i = activation
coordinate, column j = coordinate of z) is sample t = j * rows + i of a counter-based stream. It is
independent of device, system and library version, and the projection of a smaller d is a prefix of
a larger one.

The stream: Philox 4x64-10, key = first 16 bytes of SHA-256 of
``fedpeft-projection-v1|{seed}|{name}``, counter 0. Words are read little-endian as four 16-bit
samples u, low half-word first. A table maps u to a number of unit variance:
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

_LEVELS = 65536  # one table entry per 16-bit sample
BLOCK = 16  # samples per step of the counter: four words
_CHUNK = 1 << 15  # samples whose words and numbers fit a core's cache beside the table
_DIGEST_SAMPLES = 4096


@dataclass(frozen=True)
class Stream:
    """A fixed linear map of ``columns`` numbers to ``rows``, drawn from the stream ``name``."""

    seed: int
    name: str
    rows: int
    columns: int

    def words(self, start: int, count: int, part: str = "") -> np.ndarray:
        """Return 16-bit samples ``start`` to ``start + count`` of the stream, uint16 [count].

        ``part`` names one of several streams under the same name.
        """
        bits, skipped = self._drawn_to(start, part)
        return _draw(bits, skipped + count)[skipped:]

    def key(self) -> np.ndarray:
        """Return the key of the stream, uint64 [2]."""
        bits, _ = self._drawn_to(0)
        return bits.state["state"]["key"]

    def _drawn_to(self, start: int, part: str = "") -> tuple[np.random.Philox, int]:
        """Return the generator at the block of sample ``start``, and the sample's offset in it."""
        bits = philox(f"fedpeft-projection-v1|{self.seed}|{self.name}{part}")
        blocks, skipped = divmod(start, BLOCK)
        bits.advance(blocks)
        return bits, skipped

    def beginning(self) -> bytes:
        """Return bytes that identify the map: the tables and the start of each stream.

        Later words come from the same integer arithmetic, so hashing gigabytes at each handshake
        would detect nothing more.
        """
        count = min(_DIGEST_SAMPLES, self.rows * self.columns)
        return self.words(0, count).tobytes()


@dataclass(frozen=True)
class Projection(Stream):
    """A dense matrix [rows, columns] named ``{method}/{site}/{layer}``, with unit variance.

    ``identity`` draws nothing and needs rows == columns.
    """

    distribution: Distribution

    def transposed(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return columns ``start`` to ``stop`` as rows, float32 [stop - start, rows]."""
        stop = self.columns if stop is None else stop
        if self.distribution == "identity":
            return np.eye(self.columns, self.rows, dtype=np.float32)[start:stop]
        count = (stop - start) * self.rows
        return self.samples(start * self.rows, count).reshape(stop - start, self.rows)

    def samples(self, start: int, count: int) -> np.ndarray:
        """Return samples ``start`` to ``start + count`` of the stream, float32 [count]."""
        entries = np.empty(count, np.float32)
        self.fill(start, entries)
        return entries

    def fill(self, start: int, entries: np.ndarray) -> None:
        """Write samples from ``start`` on into ``entries``, float32 [count].

        numpy releases the GIL, so threads can share the work.
        """
        numbers = table(self.distribution)
        bits, skipped = self._drawn_to(start)
        done = 0
        while done < len(entries):
            count = min(_CHUNK - skipped, len(entries) - done)
            words = _draw(bits, skipped + count)[skipped:]
            # All words are in the table; mode "wrap" saves numpy a copy of the result.
            np.take(numbers, words, out=entries[done : done + count], mode="wrap")
            done, skipped = done + count, 0

    def beginning(self) -> bytes:
        """See Stream; the identity has only its shape."""
        if self.distribution == "identity":
            return b""
        count = min(_DIGEST_SAMPLES, self.rows * self.columns)
        return table(self.distribution).tobytes() + self.samples(0, count).tobytes()


@dataclass(frozen=True)
class Selection(Stream):
    """A matrix with a single entry 1 / sqrt(n_j) in every row, n_j = number of rows with column j.

    The map preserves lengths (Li et al. 2025, arXiv 2506.00799, section 3). As in the authors'
    later code, the n_j differ by at most one: independent draws would leave some columns unused.
    """

    def ranks(self) -> np.ndarray:
        """Return the place of every row in a random order, int64 [rows]; two samples per row."""
        samples = self.words(0, 2 * self.rows).astype(np.int64).reshape(-1, 2)
        # The order of random numbers is itself random, so it serves as the places.
        return (samples[:, 0] + (samples[:, 1] << 16)).argsort(kind="stable")

    def picked(self) -> np.ndarray:
        """Return the column of every row, int64 [rows]: columns in turn, in the random order."""
        return self.ranks() % self.columns


def _draw(bits: np.random.Philox, count: int) -> np.ndarray:
    """Return the next samples, uint16 [count]; drop unused samples of the last word."""
    words = bits.random_raw(-(-count // 4))
    return words.astype("<u8", copy=False).view("<u2")[:count]


@cache
def table(distribution: Distribution) -> np.ndarray:
    """Return the number for each 16-bit sample, float32 [65536], mean 0 and variance 1."""
    middle = (np.arange(_LEVELS) + 0.5) / _LEVELS
    if distribution == "uniform":
        return ((middle - 0.5) * np.sqrt(12)).astype(np.float32)
    from scipy.special import ndtri

    return ndtri(middle).astype(np.float32)


def digest(projections: Iterable[Stream]) -> str:
    """Return a SHA-256 that identifies the entries of all projections."""
    total = hashlib.sha256()
    for projection in projections:
        total.update(f"{projection}".encode())
        total.update(projection.beginning())
    return total.hexdigest()
