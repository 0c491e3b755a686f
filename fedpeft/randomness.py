"""The generators of all random numbers of fedpeft.

A generator derives from (seed, purpose, round, client), so a number does not depend on other
draws, on the process, or on the order of the clients.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class When:
    """A round of a run, counted from 1, with the number of rounds and the seed."""

    seed: int
    round: int
    rounds: int

    def progress(self, step: int, steps: int) -> float:
        """Return the share of the run that is over before a step of this round."""
        return (self.round - 1 + step / steps) / self.rounds


def philox(text: str) -> np.random.Philox:
    """Return numpy's Philox 4x64-10 with key = the first 16 bytes of SHA-256 of ``text``."""
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    return np.random.Philox(key=key, counter=0)


def generator(seed: int, purpose: str, number: int = 0, client: int = 0) -> np.random.Generator:
    """Return the generator for a purpose in round ``number`` of a client."""
    return np.random.Generator(philox(f"fedpeft-random-v1|{seed}|{purpose}|{number}|{client}"))
