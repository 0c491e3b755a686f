"""Random numbers for differential privacy: noise and Poisson samples."""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np

from fedpeft.randomness import generator

#: Draws summed for one number. Holohan & Braghin 2021 (arXiv 2107.10138, section 4.2): with the
#: sum of 2n draws, the floating-point attack (Mironov 2012) has to solve for all of them; n = 2 as
#: in Opacus's secure mode.
_SUMMED = 4
_PIECE = 2**16  # numbers drawn at a time, to bound memory: `full` has millions


class Noise(Protocol):
    """A source of random numbers for one client (or the server) in one round."""

    def normal(self, size: int) -> np.ndarray:
        """Return independent standard normal numbers, float64 [size]."""

    def uniform(self, size: int) -> np.ndarray:
        """Return independent numbers uniform in (0, 1), float64 [size]."""


class Words(Protocol):
    """A source of random bits for one client in one round."""

    def words(self, size: int) -> np.ndarray:
        """Return independent uniform words of 64 bits, uint64 [size]."""


class SecureNoise:
    """Numbers from the operating system's cryptographic generator, which cannot be reproduced.

    Guarantee: a uniform number consists of 52 bits of that generator. A normal number is
    (n_1 + ... + n_4) / 2 of four normals, each the inverse distribution function of a uniform.
    """

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        from scipy.special import ndtri

        numbers = np.empty(size)
        for start in range(0, size, _PIECE):
            piece = numbers[start : start + _PIECE]
            piece[:] = sum(ndtri(self.uniform(len(piece))) for _ in range(_SUMMED))
        return np.divide(numbers, np.sqrt(_SUMMED), out=numbers)

    def uniform(self, size: int) -> np.ndarray:
        """See Noise."""
        # 52 bits and the 0.5 that excludes 0 and 1 fill the 53 bits of a float64.
        return ((self.words(size) >> np.uint64(12)) + 0.5) / 2**52

    def words(self, size: int) -> np.ndarray:
        """See Words."""
        return np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)


class KeptNoise:
    """Words of a secret seed from the operating system: the same for the same seed.

    A client that is asked again after a crash repeats its reply to the byte. Other noise on the
    same update would reveal more of it.

    Args:
        seed: 32 bytes, used for nothing else and once.
    """

    def __init__(self, seed: bytes):
        self._seed = seed

    def words(self, size: int) -> np.ndarray:
        """See Words."""
        from fedpeft.secure import ring

        return ring.stream(self._seed, size, 64)


class SeededNoise:
    """Reproducible numbers for tests and studies: anyone who knows the seed can remove the noise.

    Args:
        generator: from ``fedpeft.randomness.generator``, with a purpose used for nothing else.
    """

    def __init__(self, generator: np.random.Generator):
        self._generator = generator

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        return self._generator.standard_normal(size)

    def uniform(self, size: int) -> np.ndarray:
        """See Noise."""
        return self._generator.random(size)

    def words(self, size: int) -> np.ndarray:
        """See Words."""
        return self._generator.integers(0, 2**64, size, dtype=np.uint64)


def noise_of(
    reproducible: bool, seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> Noise:
    """Return the noise source of one purpose in one round: seeded if reproducible, or secure."""
    return (
        SeededNoise(generator(seed, purpose, round_number, client))
        if reproducible
        else SecureNoise()
    )


def poisson(noise: Noise, count: int, rate: float) -> np.ndarray:
    """Return a Poisson sample: indices in [0, count), each included with probability ``rate``.

    Same as Opacus's UniformWithReplacementSampler, which requires a torch generator: these keep
    32 bits of a seed, few enough to try all, but a sample must stay secret.
    """
    return np.flatnonzero(noise.uniform(count) < rate)
