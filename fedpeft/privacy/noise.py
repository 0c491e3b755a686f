"""Where the randomness of differential privacy comes from: noise, and who is in a batch."""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np

from fedpeft.randomness import generator

#: Draws summed for one number. Holohan & Braghin 2021 (arXiv 2107.10138, section 4.2): with the
#: sum of 2n draws an attacker of the floating-point attack (Mironov 2012) has to solve for all of
#: them; n = 2 as in Opacus's secure mode.
_SUMMED = 4
_PIECE = 2**16  # numbers at a time: `full` has millions


class Noise(Protocol):
    """Random numbers for one client (or the server) in one round."""

    def normal(self, size: int) -> np.ndarray:
        """Return independent standard normal numbers, float64 [size]."""

    def uniform(self, size: int) -> np.ndarray:
        """Return independent numbers uniform in (0, 1), float64 [size]."""


class SecureNoise:
    """Numbers from the operating system's cryptographic generator: nobody can draw them again.

    Guarantee: a uniform number is made of 52 bits of that generator; a normal one is
    (u_1 + ... + u_4) / 2 of four normals, each the inverse distribution function of a uniform.
    """

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        from scipy.special import ndtri

        found = np.empty(size)
        for start in range(0, size, _PIECE):
            piece = found[start : start + _PIECE]
            piece[:] = sum(ndtri(self.uniform(len(piece))) for _ in range(_SUMMED))
        return np.divide(found, np.sqrt(_SUMMED), out=found)

    def uniform(self, size: int) -> np.ndarray:
        """See Noise."""
        words = np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)
        # 52 bits: with the half that keeps 0 and 1 out, all that float64 can hold.
        return ((words >> np.uint64(12)) + 0.5) / 2**52


class SeededNoise:
    """Reproducible numbers, for tests and studies: whoever knows the seed can take them off again.

    Args:
        generator: of ``fedpeft.randomness.generator``, with its own purpose.
    """

    def __init__(self, generator: np.random.Generator):
        self._generator = generator

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        return self._generator.standard_normal(size)

    def uniform(self, size: int) -> np.ndarray:
        """See Noise."""
        return self._generator.random(size)


def noise_of(reproducible: bool, seed: int, purpose: str, round: int = 0, client: int = 0) -> Noise:
    """Return the source of one purpose in one round; secure unless it is to be reproducible."""
    return SeededNoise(generator(seed, purpose, round, client)) if reproducible else SecureNoise()


def poisson(noise: Noise, count: int, rate: float) -> np.ndarray:
    """Return a Poisson sample: the indices in [0, count), each taken with probability ``rate``.

    As Opacus's UniformWithReplacementSampler, which can only draw from torch: its generator
    keeps 32 bits of a seed, few enough to try them all, and a sample has to stay secret.
    """
    return np.flatnonzero(noise.uniform(count) < rate)
