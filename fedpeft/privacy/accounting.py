"""Accounting: the epsilon of composed mechanisms, and the noise that keeps within an epsilon.

Mechanisms are Poisson-subsampled Gaussian mechanisms, or Skellam mechanisms (``skellam``).
Neighboring data sets differ by one added example (or client); the direction accounted for is its
removal, which has the larger epsilon. The accountant is PRV; RDP is used where PRV cannot be
computed or gives the looser bound (see ``bounds``), and wherever a Skellam mechanism takes part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from fedpeft.errors import UserError
from fedpeft.privacy.bounds import LEAST_NOISE, Runs, prv_bound, rdp_bound

_MOST_NOISE = 1e6  # multiplier up to which calibrate searches
Distribution = Literal["gaussian", "skellam"]


@dataclass(frozen=True)
class Mechanism:
    """A number of steps of the Poisson-subsampled Gaussian mechanism, or of the Skellam mechanism.

    Args:
        noise_multiplier: standard deviation of the noise over the L2 sensitivity; 0 = no privacy.
            Of Skellam noise, that of a Gaussian mechanism with at least its Renyi divergences at
            all integer orders, see ``skellam.variance``.
        sampling_rate: in (0, 1]; 1 = the plain mechanism. Skellam mechanisms have no other.
        steps: number of times the mechanism runs.
        noise: distribution of the noise.

    Raises:
        UserError: a value is out of its range.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    noise: Distribution = "gaussian"

    def __post_init__(self) -> None:
        if self.noise not in get_args(Distribution):
            raise UserError(f"noise = '{self.noise}': expected gaussian or skellam")
        _expect("noise multiplier", self.noise_multiplier, self.noise_multiplier >= 0, "from 0 up")
        _expect("sampling rate", self.sampling_rate, 0 < self.sampling_rate <= 1, "in (0, 1]")
        _expect("steps", self.steps, self.steps >= 0, "from 0 up")
        if self.noise == "skellam":
            _expect("sampling rate", self.sampling_rate, self.sampling_rate == 1, "of 1")


@dataclass(frozen=True)
class Spent:
    """The privacy loss of composed mechanisms.

    Args:
        epsilon: an upper bound; infinite without noise, 0 if nothing ran.
        epsilon_error: the upper bound minus the accountant's estimate; 0 for RDP, which has none.
        delta: the delta at which epsilon holds.
        accountant: the accountant that gave the bound, "prv" | "rdp".
    """

    epsilon: float
    epsilon_error: float
    delta: float
    accountant: str


def spent(
    mechanisms: Iterable[Mechanism], delta: float, epsilon_error: float | None = None
) -> Spent:
    """Return the privacy loss of mechanisms that ran in any order.

    Guarantee: epsilon is an upper bound, the smaller one of PRV's and RDP's; RDP's if a mechanism
    adds Skellam noise.

    A call takes 0.1 to 0.5 s (1 s with 16 different mechanisms); results are cached. PRV's error
    in epsilon is 0.5 % of epsilon, or what a grid of 2^18 points requires if that is more: 1 % at
    epsilon 26 with 10^5 steps, 5 % at epsilon 6 with 10^6 steps. A fixed error would take minutes
    at epsilon 100 and would exceed epsilon at 0.01. The error in delta is delta / 1000.

    Args:
        mechanisms: those with equal noise and sampling rate are merged, adding their steps.
        delta: in (0, 1).
        epsilon_error: PRV's error in epsilon, instead of the one above.

    Raises:
        UserError: delta is not in (0, 1), or epsilon_error is not positive.
    """
    _expect("delta", delta, 0 < delta < 1, "in (0, 1)")
    if epsilon_error is not None:
        _expect("epsilon_error", epsilon_error, epsilon_error > 0, "above 0")
    steps: Counter[tuple[float, float]] = Counter()
    whole = [*mechanisms]
    for mechanism in whole:
        key = float(mechanism.noise_multiplier), float(mechanism.sampling_rate)
        steps[key] += int(mechanism.steps)
    runs = tuple((sigma, q, count) for (sigma, q), count in sorted(steps.items()) if count)
    return _compose(runs, float(delta), epsilon_error, any(m.noise == "skellam" for m in whole))


@lru_cache(maxsize=4096)
def calibrate(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    epsilon_error: float | None = None,
    noise: Distribution = "gaussian",
) -> float:
    """Return the smallest noise multiplier whose epsilon, as bounded by ``spent``, is in budget.

    Guarantee: ``spent`` of the result is at most ``epsilon``; ``spent`` of a multiplier that is
    1 % smaller is above it. The result has four significant digits, rounded up. A call takes 0.1
    to 2 s; results are cached.

    Args:
        epsilon: the largest epsilon allowed.
        delta: in (0, 1).
        sampling_rate: in (0, 1].
        steps: number of times the mechanism runs, at least 1.
        epsilon_error: see ``spent``.
        noise: distribution of the noise.

    Raises:
        UserError: a value is out of its range, or no noise reaches this epsilon.
    """
    _expect("epsilon", epsilon, epsilon > 0, "above 0")
    _expect("delta", delta, 0 < delta < 1, "in (0, 1)")
    _expect("steps", steps, steps >= 1, "from 1 up")
    Mechanism(1.0, sampling_rate, steps, noise)  # checks the rate

    def excess(log_sigma: float) -> float:
        """Return log(spent / epsilon): almost linear, so the root takes few evaluations."""
        run = Mechanism(math.exp(log_sigma), sampling_rate, steps, noise)
        ratio = spent([run], delta, epsilon_error).epsilon / epsilon
        return math.log(min(max(ratio, 1e-3), 1e3))  # the root finder needs finite values

    from scipy.optimize import brentq

    high = math.log(_rdp_noise(epsilon, delta, sampling_rate, steps))
    low = high + min(excess(high), 0.0) - 0.01  # epsilon falls about as 1 / sigma, or faster
    while excess(low) <= 0:
        if low < math.log(LEAST_NOISE):
            raise UserError(f"epsilon = {epsilon:g}: needs no noise; choose a smaller epsilon")
        high, low = low, low - 0.1
    sigma = math.exp(brentq(excess, low, high, xtol=2e-4, rtol=1e-9))
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 3)  # value of the fourth significant digit
    digits = math.ceil(sigma / unit)
    while True:
        rounded = float(f"{digits * unit:.4g}")
        run = Mechanism(rounded, sampling_rate, steps, noise)
        if spent([run], delta, epsilon_error).epsilon <= epsilon:
            return rounded
        digits += 1


def _expect(name: str, value: float, valid: bool, expected: str) -> None:
    if not (valid and math.isfinite(value)):
        raise UserError(f"{name} = {value:g}: expected a number {expected}")


@lru_cache(maxsize=4096)
def _compose(runs: Runs, delta: float, epsilon_error: float | None, rdp_only: bool) -> Spent:
    """Return the smaller bound; cached, because clients with equal data ask for the same one."""
    if not runs:
        return Spent(0.0, 0.0, delta, "prv")
    rdp = rdp_bound(runs, delta)
    prv = prv_bound(runs, delta, epsilon_error, rdp) if rdp < math.inf and not rdp_only else None
    if prv is None or prv[0] > rdp:
        return Spent(rdp, 0.0, delta, "rdp")
    upper, estimate = prv
    return Spent(upper, upper - estimate, delta, "prv")


def _rdp_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return a noise multiplier within epsilon by RDP's bound, at most 5 % above the smallest."""
    sigma, factor = 1.0, 2.0
    while factor > 1.05:
        while rdp_bound(((sigma, sampling_rate, steps),), delta) > epsilon:
            sigma *= factor
            if sigma > _MOST_NOISE:
                raise UserError(
                    f"epsilon = {epsilon:g}: cannot be reached with {steps} steps at delta "
                    f"{delta:g}; choose a larger epsilon"
                )
        factor = math.sqrt(factor)
        while sigma > LEAST_NOISE and (
            rdp_bound(((sigma / factor, sampling_rate, steps),), delta) <= epsilon
        ):
            sigma /= factor
    return sigma
