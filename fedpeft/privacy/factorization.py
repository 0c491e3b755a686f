"""Matrix factorizations of a run's noise: one Gaussian mechanism for all rounds.

The server publishes x_t + e_t for every round t, where x_t is the sum of the clipped updates. The
noise e = C^-1 z is correlated over rounds by a lower triangular Toeplitz matrix C [T, T], and z is
Gaussian, so that much of it cancels in the sums of rounds that make up the task vector. Releasing
x + C^-1 z is post-processing of C x + z, the Gaussian mechanism on C x (Denisov et al. 2022, arXiv
2202.08312; theorem 2.1: also if x_t depends on the rounds before). Its sensitivity depends on how
often a client takes part, and on the rounds between (``Limits``), but on no secret sample.

``Banded``: Choquette-Choo et al. 2023, arXiv 2306.08153. ``Blt``: Dvijotham et al. 2024, arXiv
2404.16706, and McMahan et al. 2024, arXiv 2408.08868. ``factorize`` chooses their numbers.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_NEXT_TO_NOTHING = 1e-12  # by which rounding may make a coefficient exceed the one before


@dataclass(frozen=True)
class Limits:
    """Limits of one client's participation in a run.

    Attributes:
        rounds: T, of the run.
        separation: b; after round t a client takes part again in round t + b at the earliest.
        participations: k, the largest number of rounds that a client takes part in.
    """

    rounds: int
    separation: int
    participations: int


@dataclass(frozen=True)
class Banded:
    """C with entries c_{t-s} for 0 <= t - s < bands, and c_0 = 1.

    Attributes:
        coefficients: c [bands].
    """

    coefficients: tuple[float, ...]

    @property
    def memory(self) -> int:
        """Number of vectors kept from round to round: the noise of the last bands - 1 rounds."""
        return len(self.coefficients) - 1

    def column(self, rounds: int) -> np.ndarray:
        """Return the first column of C, float64 [rounds]."""
        column = np.zeros(rounds)
        used = self.coefficients[:rounds]
        column[: len(used)] = used
        return column

    def advance(self, z: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return e_t = z_t - c_1 e_{t-1} - ... - c_{b-1} e_{t-b+1} [P], and the next past.

        Args:
            z: standard normal numbers [P].
            past: e_{t-1}, e_{t-2}, ... [bands - 1, P]; zeros before round 1.
        """
        noise = z - np.einsum("b,bp->p", np.array(self.coefficients[1:]), past)
        return noise, np.concatenate([noise[None], past])[: self.memory]


@dataclass(frozen=True)
class Blt:
    """Buffered linear Toeplitz C: c_0 = 1 and c_t = sum over i of scale_i decay_i^(t-1).

    Attributes:
        scales: omega [d], above 0.
        decays: theta [d], in (0, 1).
    """

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    @property
    def memory(self) -> int:
        """Number of vectors kept from round to round: d."""
        return len(self.scales)

    def column(self, rounds: int) -> np.ndarray:
        """Return the first column of C, float64 [rounds]."""
        powers = np.array(self.decays) ** np.arange(rounds - 1)[:, None]  # [T - 1, d]
        return np.concatenate([[1.0], powers @ np.array(self.scales)])

    def advance(self, z: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return e_t = z_t - sum over i of scale_i S_i [P], and the next S: decay_i S_i + e_t.

        From C e = z: S_i = sum over s < t of decay_i^(t-1-s) e_s (arXiv 2408.08868, algorithm 3).

        Args:
            z: standard normal numbers [P].
            past: S [d, P]; zeros before round 1.
        """
        noise = z - np.einsum("d,dp->p", np.array(self.scales), past)
        return noise, np.array(self.decays)[:, None] * past + noise


Matrix = Banded | Blt


@dataclass(frozen=True)
class Factorization:
    """A matrix C for a run, with its exact sensitivity.

    Attributes:
        matrix: C.
        limits: of each client's participation.

    Raises:
        ValueError: the sensitivity of C is not known (see ``sensitivity``).
    """

    matrix: Matrix
    limits: Limits

    def __post_init__(self) -> None:
        column = self._column
        short = np.count_nonzero(column[self.limits.separation :]) == 0
        falling = column[-1] >= 0 and np.all(np.diff(column) <= _NEXT_TO_NOTHING)
        if not (short or falling):
            raise ValueError(
                f"Expected at most separation={self.limits.separation} bands, or coefficients "
                f"that fall to 0 or more."
            )

    @cached_property
    def _column(self) -> np.ndarray:
        return self.matrix.column(self.limits.rounds)

    @cached_property
    def sensitivity(self) -> float:
        """Largest L2 norm of C u over one client's participations, each of norm 1.

        It is reached by k participations exactly b rounds apart, from the first round on. With at
        most b bands: the columns of different participations share no row, and earlier columns
        have the larger norms (arXiv 2306.08153). With falling coefficients of at least
        0: Kalinin & Lampert 2024, arXiv 2405.13763, theorem 2.
        """
        return float(np.linalg.norm(packed(self._column, self.limits)))

    @cached_property
    def row_sensitivity(self) -> float:
        """Upper bound on how much one client moves one round's entry of C x, in L2 norm.

        A round that is repeated with new noise reveals one more row of C x + z.
        """
        return float(packed(np.abs(self._column), self.limits).max())

    @cached_property
    def round_noise(self) -> float:
        """Standard deviation of a round's noise (root of the mean variance) at sigma = clip = 1."""
        return self.sensitivity * _rms(inverse(self._column))

    @cached_property
    def prefix_noise(self) -> float:
        """As ``round_noise``, of the sum of all rounds so far: the error of the task vector."""
        return self.sensitivity * _rms(np.cumsum(inverse(self._column)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of C and the limits, hex."""
        limits = self.limits
        numbers = [limits.rounds, limits.separation, limits.participations, *self._column]
        return hashlib.sha256(struct.pack(f"<{len(numbers)}d", *numbers)).hexdigest()


def packed(column: np.ndarray, limits: Limits) -> np.ndarray:
    """Return the sum of the columns of k participations, b apart from the first on, float64 [T].

    Args:
        column: the first column of a lower triangular Toeplitz matrix [T].
        limits: T, b and k.
    """
    turns, b, k = -(-len(column) // limits.separation), limits.separation, limits.participations
    grid = np.zeros((turns, b))
    grid.flat[: len(column)] = column
    sums = grid.cumsum(axis=0)
    sums[k:] -= grid.cumsum(axis=0)[:-k]  # of the last k participations
    return sums.ravel()[: len(column)]


def inverse(column: np.ndarray) -> np.ndarray:
    """Return the first column of C^-1, float64 [T], from that of C."""
    from scipy.signal import lfilter

    used = np.flatnonzero(column)[-1] + 1
    impulse = np.zeros(len(column))
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], column[:used], impulse))


def _rms(column: np.ndarray) -> float:
    """Return the root of the mean squared row norm of a lower triangular Toeplitz matrix [T, T]."""
    times = np.arange(len(column), 0, -1)  # an entry is in T - s rows
    return float(np.sqrt(np.mean(times * column**2)))
