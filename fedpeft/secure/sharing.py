"""Shamir's secret sharing (Shamir 1979) of short secrets, byte by byte in GF(2^8).

A secret of L bytes is the constant term of L polynomials of degree t - 1 over the field of AES,
x^8 + x^4 + x^3 + x + 1. Share x has their values at the point x, from 1 to 255. Any t shares give
the secret, and fewer say nothing about it. Many secrets are combined at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

MOST = 255  # shares of a secret: the points of the field other than 0


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return powers [510] of the generator 3, and logarithms [256]."""
    powers, logarithms, value = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value ^= value << 1 ^ (0x11B if value & 0x80 else 0)
    return powers, logarithms


_POWERS, _LOGARITHMS = _tables()


def split(secret: bytes, chosen: Sequence[bytes], shares: int) -> list[bytes]:
    """Return the shares at the points t to ``shares``, given those at the points 1 to t - 1.

    The polynomials through the secret at 0 and any t - 1 uniform shares are uniform ones, so shares
    that both sides derive from a key need not be sent.

    Args:
        secret: L bytes.
        chosen: t - 1 shares of L uniform bytes, used for nothing else.
        shares: number of all, at most MOST; any t of them give the secret.

    Raises:
        ValueError: the numbers do not fit.
    """
    threshold = len(chosen) + 1
    if not threshold <= shares <= MOST:
        raise ValueError(f"{threshold} of {shares} shares: expected 1 to {MOST}")
    values = np.frombuffer(secret + b"".join(chosen), np.uint8).reshape(threshold, len(secret))
    weights = _extension(threshold, shares)[:, :, None]
    return [row.tobytes() for row in np.bitwise_xor.reduce(_times(values, weights), axis=1)]


def combine(points: Sequence[Sequence[int]], shares: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the secrets of which each row of ``shares`` has the values at a row of ``points``.

    Args:
        points: of each secret t different ones, from 1 to MOST.
        shares: of each secret, in the order of its points.

    Raises:
        ValueError: a point is repeated or outside of the field.
    """
    x = np.array(points, np.int64)  # [secrets, t]
    ordered = np.sort(x, axis=1)
    if (ordered < 1).any() or (ordered > MOST).any() or (np.diff(ordered) == 0).any():
        raise ValueError(f"points of shares: expected different ones from 1 to {MOST}")
    rows = np.frombuffer(b"".join(chain.from_iterable(shares)), np.uint8).reshape(*x.shape, -1)
    weights = _weights(x)[:, :, None]
    return [row.tobytes() for row in np.bitwise_xor.reduce(_times(rows, weights), axis=1)]


def _weights(points: np.ndarray) -> np.ndarray:
    """Return the Lagrange weights at 0 [..., t]: the product of x_m / (x_m - x_j) over m != j."""
    above = _LOGARITHMS[points]
    below = _LOGARITHMS[points[..., :, None] ^ points[..., None, :]]  # the logarithm of 0 is 0
    exponents = above.sum(axis=-1, keepdims=True) - above - below.sum(axis=-1)
    return _POWERS[exponents % 255]


@lru_cache(maxsize=16)
def _extension(threshold: int, shares: int) -> np.ndarray:
    """Return the Lagrange weights [shares - t + 1, t] of the values at 0 to t - 1.

    For each point x from t to ``shares``: the product of (x - x_m) / (x_j - x_m) over m != j.
    """
    known, x = np.arange(threshold), np.arange(threshold, shares + 1)
    above = _LOGARITHMS[x[:, None] ^ known]
    below = _LOGARITHMS[known[:, None] ^ known].sum(axis=1)
    return _POWERS[(above.sum(axis=1, keepdims=True) - above - below) % 255]


def _times(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the products in the field, broadcast."""
    product = _POWERS[_LOGARITHMS[one] + _LOGARITHMS[other]]
    return np.where((one == 0) | (other == 0), np.uint8(0), product)
