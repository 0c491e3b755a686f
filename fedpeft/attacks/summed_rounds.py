"""Rounds whose noise is added by the clients of a sum under masks, for ``canary_clients``.

The attacker is the server together with ``secure.colluders`` clients: it reads the sum over as few
honest clients as it can (``fedpeft.updates.sums.honest``), and knows the rounding and the rotation.
Masks are left out, because they cancel in that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.noise import SecureNoise, SeededNoise, Words
from fedpeft.privacy.plan import client_delta, client_plan
from fedpeft.randomness import generator
from fedpeft.secure.masks import FACTS
from fedpeft.updates import sums


class SummedRounds:
    """All rounds that the ledgers of clients allow, with the same honest clients in each.

    Neighboring runs differ by the updates of one client, which are zero in one of them; so clients
    that send nothing add noise to zero.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.plan = experiment, client_plan(experiment)
        self.clip = experiment.privacy.client_clip
        self._honest, self._number, self._size = sums.honest(experiment), 0, 0

    def charge(self, number: int, start: np.ndarray) -> dict[str, Any]:
        """Return what the client's ledger holds after this round from a vector [P]."""
        self._number, self._size = number, len(start)
        given = self.experiment.privacy.of_clients()[2]
        delta = client_delta(self.experiment.federation.clients, given)
        total = spent([replace(self.plan.mechanism, steps=number)], delta)
        return {"epsilon": total.epsilon if np.isfinite(total.epsilon) else None, "delta": delta}

    def sample(self, pool: np.ndarray, number: int) -> list[int]:
        """Return the honest clients of the sum: all of the pool."""
        return pool.tolist()

    def mean_update(self, updates: Sequence[np.ndarray]) -> np.ndarray:
        """Return the sum that the server reads over the honest clients, divided by their number."""
        experiment, clip, count = self.experiment, self.clip, self._honest
        rows = [*updates, *[np.zeros(self._size)] * (count - len(updates))]
        total = np.zeros(self._size, np.uint64)
        for client, update in enumerate(rows):
            levels, _ = sums.encoded(
                experiment, self._number, client, update, 0.0, clip, 1.0, self._noise(client)
            )
            total += levels
        facts = np.zeros(FACTS, np.uint64)
        return sums.decoded(experiment, self._number, total, facts, count, clip, count).change

    def _noise(self, client: int) -> Words:
        experiment = self.experiment
        if not experiment.privacy.reproducible:
            return SecureNoise()
        return SeededNoise(generator(experiment.seed, "audit-sum", self._number, client))
