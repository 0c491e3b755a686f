"""Where the noise of differential privacy comes from.

A noise source gives float64 normals for the mechanism and a torch generator for Poisson sampling.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

#: Draws summed for one number. Holohan & Braghin 2021 (arXiv 2107.10138, section 4.2): with the
#: sum of 2n draws an attacker of the floating-point attack (Mironov 2012) has to solve for all of
#: them; n = 2 as in Opacus's secure mode.
_SUMMED = 4


class Noise(Protocol):
    """Random numbers for one client (or the server) in one round."""

    releasable: bool  # whether nobody else can draw the same numbers

    def normal(self, size: int) -> np.ndarray:
        """Return independent standard normal numbers, float64 [size]."""

    def sampler(self) -> torch.Generator:
        """Return a generator for Poisson sampling, in a state drawn from this source."""


class SecureNoise:
    """Numbers from the operating system's cryptographic generator: nobody can draw them again.

    Guarantee: every normal is (u_1 + ... + u_4) / 2 of four independent normals in float64, each
    the inverse distribution function of 53 bits of the system's generator. The sampler is a
    Mersenne Twister with a seed of 64 such bits: it is not cryptographic itself, but none of its
    numbers leave the process.
    """

    releasable = True

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        from scipy.special import ndtri

        total = np.zeros(size)
        for _ in range(_SUMMED):  # one after the other: `full` has millions of numbers
            words = np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64) >> np.uint64(11)
            total += ndtri((words + 0.5) / 2**53)
        return total / np.sqrt(_SUMMED)

    def sampler(self) -> torch.Generator:
        """See Noise."""
        import torch

        return torch.Generator().manual_seed(secrets.randbits(63))


class SeededNoise:
    """Reproducible numbers, for tests and studies: whoever knows the seed can take them off again.

    Args:
        generator: of ``fedpeft.randomness.generator``, with its own purpose.
    """

    releasable = False

    def __init__(self, generator: np.random.Generator):
        self._generator = generator

    def normal(self, size: int) -> np.ndarray:
        """See Noise."""
        return self._generator.standard_normal(size)

    def sampler(self) -> torch.Generator:
        """See Noise."""
        import torch

        return torch.Generator().manual_seed(int(self._generator.integers(2**63)))
