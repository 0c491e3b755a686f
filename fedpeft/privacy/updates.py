"""Differential privacy of whole clients, through their updates.

An update [P] is the trained task vector minus the one that the client started from. ``noisy_mean``
is the server's mechanism (McMahan et al. 2018, arXiv 1710.06963, with a fixed denominator),
``AdaptiveClip`` moves its clip (Andrew et al. 2021, arXiv 1905.03871). ``noisy_update`` is local
DP: what a client sends if it does not trust the server.

Guarantee: on a Poisson sample of the clients with rate q, ``noisy_mean`` with noise multiplier
sigma > 0 and a secure noise source is one run of the Poisson-subsampled Gaussian mechanism with
(sigma, q) for adding or removing one client with all its examples. Norms and means are float64;
rounding moves the sensitivity by less than one part in 10^9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpeft.errors import UserError
from fedpeft.privacy.noise import Noise

#: eta_C of Andrew et al. 2021, section 3.1.
CLIP_LEARNING_RATE = 0.2
#: sigma_b is this share of the expected clients (Andrew et al. 2021, section 3.1).
COUNT_NOISE = 1 / 20


def clipped(update: np.ndarray, clip: float) -> tuple[np.ndarray, bool]:
    """Clip an update [P] to an L2 norm of at most ``clip``.

    Args:
        update: of any float type; counts as zero if a value or the norm is not finite.
        clip: 0 = no clipping.

    Returns:
        The clipped update in float64, and whether the norm was within ``clip`` already.
    """
    update = update.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(update))
    if not math.isfinite(norm):
        return np.zeros_like(update), True
    if clip == 0 or norm <= clip:
        return update, True
    return update * (clip / norm), False


def noisy_mean(
    updates: np.ndarray, clip: float, noise_multiplier: float, expected: float, noise: Noise
) -> np.ndarray:
    """Return (sum of the clipped updates + N(0, sigma^2 C^2 I)) / expected, float64 [P].

    Args:
        updates: [n, P], from the n sampled clients that replied; n may be 0.
        clip: C; 0 = no clipping, allowed only without noise.
        noise_multiplier: sigma.
        expected: q K, the EXPECTED number of sampled clients in a population of K. It must not
            depend on who replied: one client then moves the mean by at most C / expected.
        noise: the noise source of this round.

    Raises:
        ValueError: there is noise but no clip.
    """
    total = _gaussian(updates.shape[1], clip, noise_multiplier, noise)
    for update in updates:
        total += clipped(update, clip)[0]
    return total / expected


def noisy_update(
    update: np.ndarray, clip: float, noise_multiplier: float, noise: Noise
) -> np.ndarray:
    """Return one client's clipped update + N(0, (2 sigma C)^2 I), float64 [P].

    Guarantee: the Gaussian mechanism (q = 1) with multiplier sigma for replacing all examples of
    the client by any others: two clipped updates differ by up to 2 C.

    Raises:
        ValueError: there is noise but no clip.
    """
    return clipped(update, clip)[0] + _gaussian(len(update), 2 * clip, noise_multiplier, noise)


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip that follows a quantile of the updates' norms (Andrew et al. 2021, algorithm 1).

    A separate noisy query gives the share b of updates within C; then
    C <- C exp(-0.2 (b - quantile)).

    Guarantee: ``noisy_mean`` with ``update_noise`` and ``adapted``, on the same sample, cost
    together what ``noisy_mean`` alone costs with ``noise_multiplier`` (theorem 1).

    Attributes:
        quantile: gamma in (0, 1).
        expected: the expected number of clients per round.
        noise_multiplier: z, of both queries together; 0 = both are exact.

    Raises:
        UserError: z is too large for this number of clients.
    """

    quantile: float
    expected: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if self.noise_multiplier and self.noise_multiplier >= 2 * self.count_noise:
            raise UserError(
                f"privacy.client_quantile = {self.quantile:g}: noise multiplier "
                f"{self.noise_multiplier:.4g} is too large; adaptive clipping needs one below a "
                f"tenth of the {self.expected:g} clients expected per round; sample more clients, "
                f"or set privacy.client_quantile = 0"
            )

    @property
    def count_noise(self) -> float:
        """sigma_b: standard deviation of the noise on the number of updates within C."""
        return COUNT_NOISE * self.expected if self.noise_multiplier else 0.0

    @property
    def update_noise(self) -> float:
        """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the noise multiplier of the updates."""
        if not self.noise_multiplier:
            return 0.0
        return float((self.noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    def adapted(self, clip: float, updates: np.ndarray, noise: Noise) -> float:
        """Return the clip of the next round, after a round with ``clip`` and ``updates`` [n, P]."""
        # 1/2 is subtracted from every answer: one client then moves the sum by 1/2, not by 1.
        total = sum(clipped(update, clip)[1] - 0.5 for update in updates)
        total += self.count_noise * float(noise.normal(1)[0])
        within = total / self.expected + 0.5
        return clip * math.exp(-CLIP_LEARNING_RATE * (within - self.quantile))


def _gaussian(size: int, clip: float, noise_multiplier: float, noise: Noise) -> np.ndarray:
    """Return N(0, sigma^2 C^2 I), float64 [size]."""
    if not noise_multiplier:
        return np.zeros(size)
    if not clip > 0:
        raise ValueError(f"Expected clip={clip} above 0, because noise is added.")
    return noise.normal(size) * (noise_multiplier * clip)
