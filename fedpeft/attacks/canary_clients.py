"""Membership attack on whole clients: canary clients send a worst-case update in all their rounds.

The attacker sees what every round releases, and knows everything except the coins that decide
which canaries exist, and a secret sample. Canary i always sends an update along coordinate i that
is longer than the clip, so that each canary is an independent trial of what a run reveals about
one client: its released coordinate depends on no other client, and its noise on no other
coordinate. Nothing is trained, so a run takes seconds, but every update passes through the code
that samples, clips, adds noise and charges in a real run (``PrivateRounds``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedpeft.attacks.trials import (
    counts_of,
    gaussian_bound,
    lower_bound,
    middle_of,
    threshold_of,
)
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.bounds import LEAST_NOISE
from fedpeft.privacy.plan import Plan
from fedpeft.randomness import generator

#: Canaries of one run. More take more time than a further run.
MOST_CANARIES = 1000
_LONGER = 10.0  # norm of a canary's update in clips: without clipping it would show
_WORST = 0.95  # turns that move C x nearly as far as the worst ones count as trials


class PrivateRounds(Protocol):
    """Rounds of a run that protects its clients, as those of ``server.privacy.central_privacy``.

    A mechanism with this interface is audited without further code. Its ``plan`` decides the
    score: a sampling rate below 1 is a secret sample, otherwise all know who takes part.

    Attributes:
        plan: the claimed mechanism, of a round or, with a factorization, of all rounds.
        clip: of the next round.
    """

    plan: Plan
    clip: float

    def charge(self, number: int, start: np.ndarray) -> dict[str, Any]:
        """Charge a round from the task vector [P]; return the privacy statement so far."""

    def sample(self, pool: np.ndarray, number: int) -> list[int]:
        """Return the clients of the charged round that are in the pool."""

    def mean_update(self, updates: list[np.ndarray]) -> np.ndarray:
        """Return what the charged round releases of its updates, [P]."""


@dataclass(frozen=True)
class Population:
    """Numbers of the audited run.

    Attributes:
        clients: in the population.
        expected: clients of a round, by which the sum of updates is divided.
        rounds: of a run.
        seed: of the coins.
    """

    clients: int
    expected: int
    rounds: int
    seed: int

    @property
    def canaries(self) -> int:
        """Number of canaries: clients 0, 1, ..."""
        return min(self.clients, MOST_CANARIES)

    def runs(self, trials: int) -> int:
        """Return the even number of runs with at least so many canaries in all of them."""
        return 2 * max(1, -(-trials // (2 * self.canaries)))


@dataclass(frozen=True)
class Watched:
    """What the attacker knows of a run of T rounds with m canaries.

    Attributes:
        released: coordinates of the canaries in the sum of updates, in clips, [T, m].
        turns: whether a canary was asked, bool [T, m]; also of those that do not exist. Secret if
            clients are sampled in secret.
    """

    released: np.ndarray
    turns: np.ndarray


def watch(
    rounds: PrivateRounds, population: Population, included: np.ndarray
) -> tuple[Watched, dict[str, Any]]:
    """Play a run with canaries; return what it released, and its last privacy statement.

    Args:
        rounds: of a new run.
        population: the run's numbers.
        included: which canaries exist, bool [m].
    """
    size, pool = len(included), np.arange(population.clients)
    released, turns = np.empty((population.rounds, size)), np.zeros((population.rounds, size), bool)
    statement: dict[str, Any] = {}
    for index in range(population.rounds):
        statement = rounds.charge(index + 1, np.zeros(size))
        asked = np.array(rounds.sample(pool, index + 1), dtype=int)
        asked = asked[asked < size]
        turns[index, asked] = True
        clip = rounds.clip or 1.0
        updates = [_update(size, client, clip) for client in asked[included[asked]]]
        released[index] = rounds.mean_update(updates) * (population.expected / clip)
    return Watched(released, turns), statement


def _update(size: int, client: int, clip: float) -> np.ndarray:
    update = np.zeros(size)
    update[client] = _LONGER * clip
    return update


def scores(watched: Watched, plan: Plan) -> np.ndarray:
    """Return the attacker's score of each canary, [m]: higher = more likely in.

    NaN for canaries whose turns, which are public, show much less than those of others.
    """
    if plan.mechanism.sampling_rate < 1:
        return secret_scores(watched.released, plan.mechanism)
    return public_scores(watched, plan)


def secret_scores(released: np.ndarray, mechanism: Mechanism) -> np.ndarray:
    """Return the log likelihood ratio of rounds with secret Poisson samples, [m].

    A round's coordinate is N(0, sigma^2) without the client, and a mixture of it and N(1, sigma^2)
    with the sampling rate as weight with it.
    """
    sigma, rate = max(mechanism.noise_multiplier, LEAST_NOISE), mechanism.sampling_rate
    shifted = math.log(rate) + (2 * released - 1) / (2 * sigma**2)
    return np.logaddexp(math.log1p(-rate), shifted).sum(axis=0)


def public_scores(watched: Watched, plan: Plan) -> np.ndarray:
    """Return the most powerful statistic where all know who takes part, [m].

    The rounds release x + C^-1 z, hence C x + z. It is projected on the shift C u of a client with
    turns u (C = I without a factorization), whose length is at most the sensitivity. NaN where the
    shift is less than 95 % of the longest.
    """
    from scipy.signal import lfilter

    column = np.eye(1, len(watched.turns))[0]
    if plan.factorization:
        column = plan.factorization.matrix.column(len(watched.turns))
    shift = lfilter(column, [1.0], watched.turns.astype(float), axis=0)
    whitened = lfilter(column, [1.0], watched.released, axis=0)
    length = np.linalg.norm(shift, axis=0)
    shows = length >= max(_WORST * length.max(), LEAST_NOISE)
    return np.where(shows, (whitened * shift).sum(axis=0) / np.where(shows, length, 1.0), np.nan)


def audit_clients(
    make: Callable[[int], PrivateRounds],
    population: Population,
    trials: int,
    confidence: float,
    done: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Attack runs of a mechanism that protects clients, and bound its epsilon from below.

    Thresholds are chosen on the first half of the runs, and counted on the second half.

    Args:
        make: returns the rounds of run 0, 1, ...; every run is a new one with the same settings.
        population: numbers of a run.
        trials: least number of canaries in all runs together.
        confidence: of the bound, in (0, 1).
        done: called after each run.

    Returns:
        ``unit``, ``claimed_epsilon`` (None without a claim) and ``delta`` of the runs' statement,
        ``lower_bound`` and ``gaussian_bound`` (None with secret samples; see ``trials``), the
        ``confidence`` with which both hold together, ``trials`` counted, ``runs`` and ``rounds``.
    """
    half = population.runs(trials) // 2
    parts = []
    for run in range(2 * half):
        coins = generator(population.seed, "audit-clients", run).random(population.canaries) < 0.5
        rounds = make(run)
        watched, statement = watch(rounds, population, coins)
        found = scores(watched, rounds.plan)
        parts.append((found[~np.isnan(found)], coins[~np.isnan(found)]))
        done()
    delta, gaussian = statement["delta"], rounds.plan.mechanism.sampling_rate == 1
    seen, fresh = _joined(parts[:half]), _joined(parts[half:])

    share = (1 + confidence) / 2 if gaussian else confidence  # two bounds share what is left of 1
    plain = partial(lower_bound, delta=delta, confidence=share)
    tight = None
    if gaussian:
        tight = gaussian_bound(counts_of(*fresh, middle_of(*seen)), delta, share)
    return {
        "unit": "client",
        "claimed_epsilon": statement["epsilon"],
        "delta": delta,
        "lower_bound": plain(counts_of(*fresh, threshold_of(*seen, plain))),
        "gaussian_bound": tight,
        "confidence": confidence,
        "trials": len(fresh[0]),
        "runs": 2 * half,
        "rounds": population.rounds,
    }


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    found, coins = zip(*parts, strict=True)
    return np.concatenate(found), np.concatenate(coins)
