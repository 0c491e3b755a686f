"""Differential privacy for whole clients: what is done to their updates.

An update [P] is the trained task vector minus the one a client started from. ``noisy_mean`` is the
server's mechanism (McMahan et al. 2018, arXiv 1710.06963, the estimator with a fixed denominator),
``AdaptiveClip`` moves its clip (Andrew et al. 2021, arXiv 1905.03871), ``hidden`` is what a client
does that trusts no server.

Guarantee: over a Poisson sample of the clients with rate q, ``noisy_mean`` with noise multiplier
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
    """Return an update [P] in float64 with an L2 norm of at most ``clip``.

    Args:
        update: of any float type; one that is not finite, or whose norm is not, counts as zero.
        clip: 0 = not clipped.

    Returns:
        The update, and whether it was within ``clip`` already.
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
        updates: [n, P], those of the n clients that were sampled and answered; n may be 0.
        clip: C; 0 = not clipped, without noise only.
        noise_multiplier: sigma.
        expected: q K, the EXPECTED number of sampled clients of the population K. It must not
            depend on who answered: one client then moves the mean by at most C / expected.
        noise: a source for this round.

    Raises:
        ValueError: noise without a clip.
    """
    total = _gaussian(updates.shape[1], clip, noise_multiplier, noise)
    for update in updates:
        total += clipped(update, clip)[0]
    return total / expected


def hidden(update: np.ndarray, clip: float, noise_multiplier: float, noise: Noise) -> np.ndarray:
    """Return one client's clipped update + N(0, (2 sigma C)^2 I), float64 [P].

    Guarantee: the Gaussian mechanism (q = 1) with multiplier sigma for replacing all examples of
    the client by any others: two clipped updates are up to 2 C apart.

    Raises:
        ValueError: noise without a clip.
    """
    return clipped(update, clip)[0] + _gaussian(len(update), 2 * clip, noise_multiplier, noise)


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip that follows a quantile of the norms (Andrew et al. 2021, algorithm 1).

    The share b of updates within C is asked with noise of its own, and then
    C <- C exp(-0.2 (b - quantile)).

    Guarantee: ``noisy_mean`` with ``update_noise`` and ``adapted``, on the same sample, cost
    together what ``noisy_mean`` alone costs with ``noise_multiplier`` (theorem 1).

    Attributes:
        quantile: gamma in (0, 1).
        expected: the expected number of clients of a round.
        noise_multiplier: z, what both queries may cost together; 0 = both are exact.

    Raises:
        UserError: z is too large for so few clients.
    """

    quantile: float
    expected: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if self.noise_multiplier and self.noise_multiplier >= 2 * self.count_noise:
            raise UserError(
                f"privacy.client_quantile = {self.quantile:g}: to clip adaptively takes a noise "
                f"multiplier below a tenth of the {self.expected:g} clients expected each round, "
                f"and it is {self.noise_multiplier:.4g}; ask more clients, or set "
                f"privacy.client_quantile = 0"
            )

    @property
    def count_noise(self) -> float:
        """sigma_b: the standard deviation of the noise on the number of updates within C."""
        return COUNT_NOISE * self.expected if self.noise_multiplier else 0.0

    @property
    def update_noise(self) -> float:
        """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the noise multiplier left for the updates."""
        if not self.noise_multiplier:
            return 0.0
        return float((self.noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    def adapted(self, clip: float, updates: np.ndarray, noise: Noise) -> float:
        """Return the next clip, after a round with ``clip`` and ``updates`` [n, P]."""
        # 1/2 is taken off every answer, so that one client moves the sum by 1/2 and not by 1.
        total = sum(clipped(update, clip)[1] - 0.5 for update in updates)
        total += self.count_noise * float(noise.normal(1)[0])
        within = total / self.expected + 0.5
        return clip * math.exp(-CLIP_LEARNING_RATE * (within - self.quantile))


def _gaussian(size: int, clip: float, noise_multiplier: float, noise: Noise) -> np.ndarray:
    """Return N(0, sigma^2 C^2 I), float64 [size]."""
    if not noise_multiplier:
        return np.zeros(size)
    if not clip > 0:
        raise ValueError(f"Expected clip={clip} above 0, because there is noise to match it.")
    return noise.normal(size) * (noise_multiplier * clip)
