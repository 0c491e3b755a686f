"""What mechanisms cost together, and how much noise a cost needs.

Everything is a Poisson-subsampled Gaussian mechanism; neighbours differ by one more example (or
client), accounted in the direction of its removal, which is the worse one. The accountant is PRV,
with RDP where PRV cannot be computed or gives the looser bound: see ``bounds``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fedpeft.errors import UserError
from fedpeft.privacy.bounds import LEAST_NOISE, Runs, prv_bound, rdp_bound

_MOST_NOISE = 1e6  # multiplier up to which calibrate searches


@dataclass(frozen=True)
class Mechanism:
    """The Poisson-subsampled Gaussian mechanism, run some times.

    Args:
        noise_multiplier: standard deviation of the noise over the L2 sensitivity; 0 = no privacy.
        sampling_rate: in (0, 1]; 1 = the plain Gaussian mechanism.
        steps: how often it runs.

    Raises:
        UserError: a value out of its range.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        _expect("noise multiplier", self.noise_multiplier, self.noise_multiplier >= 0, "from 0 up")
        _expect("sampling rate", self.sampling_rate, 0 < self.sampling_rate <= 1, "in (0, 1]")
        _expect("steps", self.steps, self.steps >= 0, "from 0 up")


@dataclass(frozen=True)
class Spent:
    """What mechanisms cost together.

    Args:
        epsilon: an upper bound; infinite without noise, 0 if nothing ran.
        epsilon_error: the upper bound minus the accountant's estimate; 0 where it has none.
        delta: at which epsilon holds.
        accountant: "prv" | "rdp", which gave the bound.
    """

    epsilon: float
    epsilon_error: float
    delta: float
    accountant: str


def spent(
    mechanisms: Iterable[Mechanism], delta: float, epsilon_error: float | None = None
) -> Spent:
    """Return what mechanisms cost together, in whatever order they ran.

    Guarantee: epsilon is an upper bound, the smaller one of PRV's and RDP's.

    A call takes 0.1 to 0.5 s (1 s with 16 different mechanisms), and nothing when asked again.
    The PRV's error is 0.5 % of epsilon, but as much as its grid of 2^18 points needs if that is
    more: 1 % at epsilon 26 with 10^5 steps, 5 % at 6 with 10^6. A fixed error would cost minutes
    at epsilon 100 and be everything that there is at 0.01. The error in delta is delta / 1000.

    Args:
        mechanisms: equal ones are run as one with all their steps.
        delta: in (0, 1).
        epsilon_error: of the PRV, instead of the one above.

    Raises:
        UserError: delta is not in (0, 1), or epsilon_error is not positive.
    """
    _expect("delta", delta, 0 < delta < 1, "in (0, 1)")
    if epsilon_error is not None:
        _expect("epsilon_error", epsilon_error, epsilon_error > 0, "above 0")
    steps: Counter[tuple[float, float]] = Counter()
    for each in mechanisms:
        steps[float(each.noise_multiplier), float(each.sampling_rate)] += int(each.steps)
    runs = tuple((sigma, q, count) for (sigma, q), count in sorted(steps.items()) if count)
    return _compose(runs, float(delta), epsilon_error)


@lru_cache(maxsize=4096)
def calibrate(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    epsilon_error: float | None = None,
) -> float:
    """Return the smallest noise multiplier that keeps within an epsilon, as ``spent`` bounds it.

    Guarantee: ``spent`` of the result is at most ``epsilon``, and that of a multiplier smaller by
    1 % is more. It has four significant digits, the last one rounded up. Takes 0.1 to 2 s.

    Args:
        epsilon: the most that may be spent.
        delta: in (0, 1).
        sampling_rate: in (0, 1].
        steps: how often the mechanism runs, at least once.
        epsilon_error: see ``spent``.

    Raises:
        UserError: a value out of its range, or an epsilon that no noise reaches.
    """
    _expect("epsilon", epsilon, epsilon > 0, "above 0")
    _expect("delta", delta, 0 < delta < 1, "in (0, 1)")
    _expect("steps", steps, steps >= 1, "from 1 up")
    Mechanism(1.0, sampling_rate, steps)  # refuses a wrong rate

    def excess(log_sigma: float) -> float:
        """Return log(spent / epsilon): nearly a line, so that few evaluations find its root."""
        run = Mechanism(math.exp(log_sigma), sampling_rate, steps)
        ratio = spent([run], delta, epsilon_error).epsilon / epsilon
        return math.log(min(max(ratio, 1e-3), 1e3))  # finite for the root finder

    from scipy.optimize import brentq

    high = math.log(_rdp_noise(epsilon, delta, sampling_rate, steps))
    low = high + min(excess(high), 0.0) - 0.01  # epsilon falls about as 1 / sigma, or faster
    while excess(low) <= 0:
        if low < math.log(LEAST_NOISE):
            raise UserError(f"epsilon = {epsilon:g}: expected one that needs noise; take a smaller")
        high, low = low, low - 0.1
    sigma = math.exp(brentq(excess, low, high, xtol=2e-4, rtol=1e-9))
    last = 10.0 ** (math.floor(math.log10(sigma)) - 3)  # of four digits
    digits = math.ceil(sigma / last)
    while True:
        rounded = float(f"{digits * last:.4g}")
        run = Mechanism(rounded, sampling_rate, steps)
        if spent([run], delta, epsilon_error).epsilon <= epsilon:
            return rounded
        digits += 1


def _expect(name: str, value: float, right: bool, expected: str) -> None:
    if not (right and math.isfinite(value)):
        raise UserError(f"{name} = {value:g}: expected a number {expected}")


@lru_cache(maxsize=4096)
def _compose(runs: Runs, delta: float, epsilon_error: float | None) -> Spent:
    """Return the better bound. Ten clients with the same numbers ask for the same one."""
    if not runs:
        return Spent(0.0, 0.0, delta, "prv")
    rdp = rdp_bound(runs, delta)
    by_prv = prv_bound(runs, delta, epsilon_error, rdp) if rdp < math.inf else None
    if by_prv is None or by_prv[0] > rdp:
        return Spent(rdp, 0.0, delta, "rdp")
    upper, estimate = by_prv
    return Spent(upper, upper - estimate, delta, "prv")


def _rdp_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return a noise multiplier that RDP's bound allows, at most 5 % above the smallest."""
    sigma, factor = 1.0, 2.0
    while factor > 1.05:
        while rdp_bound(((sigma, sampling_rate, steps),), delta) > epsilon:
            sigma *= factor
            if sigma > _MOST_NOISE:
                raise UserError(
                    f"epsilon = {epsilon:g}: expected one that noise can reach with {steps} steps "
                    f"at delta {delta:g}; take a larger epsilon"
                )
        factor = math.sqrt(factor)
        while sigma > LEAST_NOISE and (
            rdp_bound(((sigma / factor, sampling_rate, steps),), delta) <= epsilon
        ):
            sigma /= factor
    return sigma
