"""Every random number of fedpeft comes from a generator made here.

A generator is derived from (seed, purpose, round, client), so a number does not depend on
what else was drawn before it, in which process, or in which order the clients ran.
"""

from __future__ import annotations

import hashlib

import numpy as np


def philox(text: str) -> np.random.Philox:
    """Return numpy's Philox 4x64-10 with key = the first 16 bytes of SHA-256 of ``text``."""
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    return np.random.Philox(key=key, counter=0)


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return the generator of one purpose in one round of one client."""
    return np.random.Generator(philox(f"fedpeft-random-v1|{seed}|{purpose}|{round}|{client}"))
