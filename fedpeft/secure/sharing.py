"""Shamir's secret sharing (Shamir 1979) of short secrets, byte by byte in GF(2^8).

A secret of L bytes is the constant term of L polynomials of degree t - 1 over the field of AES,
x^8 + x^4 + x^3 + x + 1. Share x has their values at the point x, from 1 to 255. Any t shares give
the secret, and fewer say nothing about it. All secrets that were shared among the same points are
combined at once: their Lagrange weights are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def split(secret: bytes, shares: int, threshold: int, random: bytes) -> list[bytes]:
    """Return the shares at the points 1 to ``shares``.

    Args:
        secret: L bytes.
        shares: their number, at most MOST.
        threshold: t, how many give the secret.
        random: L (t - 1) uniform bytes, used for nothing else.

    Raises:
        ValueError: the numbers do not fit.
    """
    if not 1 <= threshold <= shares <= MOST:
        raise ValueError(f"{threshold} of {shares} shares: expected 1 to {MOST}")
    coefficients = np.frombuffer(random, np.uint8).reshape(threshold - 1, len(secret))
    points = np.arange(1, shares + 1, dtype=np.uint8)[:, None]
    values = np.zeros((shares, len(secret)), np.uint8)
    for row in coefficients[::-1]:  # Horner's rule
        values = _times(values ^ row, points)
    values ^= np.frombuffer(secret, np.uint8)
    return [row.tobytes() for row in values]


def combine(points: Sequence[int], shares: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the secrets of which each row of ``shares`` has the values at ``points``.

    Args:
        points: t different ones, from 1 to MOST.
        shares: of each secret, in the order of the points.

    Raises:
        ValueError: a point is repeated or outside of the field.
    """
    if len({*points}) != len(points) or not all(1 <= point <= MOST for point in points):
        raise ValueError(f"points of shares: expected different ones from 1 to {MOST}")
    rows = np.array([[*map(list, row)] for row in shares], dtype=np.uint8)  # [secrets, t, L]
    return [row.tobytes() for row in np.bitwise_xor.reduce(_times(rows, _weights(points)), axis=1)]


def _weights(points: Sequence[int]) -> np.ndarray:
    """Return the Lagrange weights at 0 [t, 1]: the product of x_m / (x_m - x_j) over m != j."""
    x = np.array(points)
    above, below = _LOGARITHMS[x], _LOGARITHMS[x[:, None] ^ x]
    np.fill_diagonal(below, 0)
    exponents = above.sum() - above - below.sum(axis=1)
    return _POWERS[exponents % 255][:, None]


def _times(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the products in the field, broadcast."""
    product = _POWERS[_LOGARITHMS[one] + _LOGARITHMS[other]]
    return np.where((one == 0) | (other == 0), np.uint8(0), product)
