"""The order in which clients take part if their rounds must be a minimum number apart.

The order is a function of (seed, clients, clients per round, separation), so it depends on no
client's data or answer, and it need not be secret.
"""

from __future__ import annotations

import numpy as np

from fedpeft.randomness import generator


class Schedule:
    """The clients of each round: every client once in each pass over all of them.

    Round t takes positions (t - 1) n ... t n - 1 of a sequence of passes. A pass is a random order
    in which no client is more than K - b n positions earlier than in the pass before. A client's
    positions thus differ by at least b n, its rounds by at least b, and in T rounds it takes part
    at most ceil(T n / K) times. With K = b n, all passes have the same order.

    Attributes:
        clients: K, of the population.
        per_round: n.
        separation: b, with b n <= K.
        seed: of the experiment.
    """

    def __init__(self, clients: int, per_round: int, separation: int, seed: int) -> None:
        self.clients, self.per_round, self.separation = clients, per_round, separation
        self.seed = seed
        self._number, self._pass = 0, generator(seed, "client-order").permutation(clients)

    def of(self, number: int) -> np.ndarray:
        """Return the clients of round ``number``, from 1, in client order, int64 [n]."""
        start = (number - 1) * self.per_round
        begun, first = divmod(start, self.clients)
        order = self._order(begun)[first : first + self.per_round]
        if missing := self.per_round - len(order):
            order = np.concatenate([order, self._order(begun + 1)[:missing]])
        return np.sort(order)

    def _order(self, number: int) -> np.ndarray:
        """Return the order of pass ``number``, from 0, int64 [K]."""
        if number < self._number:  # a round before the last one asked for
            self._number = 0
            self._pass = generator(self.seed, "client-order").permutation(self.clients)
        while self._number < number:
            self._number += 1
            self._pass = self._next(self._pass, self._number)
        return self._pass

    def _next(self, before: np.ndarray, number: int) -> np.ndarray:
        """Return an order in which no client is more than K - b n positions earlier."""
        earlier = self.clients - self.separation * self.per_round
        if not earlier:
            return before
        draws = generator(self.seed, "client-order", number).random(self.clients)
        waiting, order = before[:earlier].tolist(), np.empty_like(before)
        for place, draw in enumerate(draws):
            if place + earlier < self.clients:
                waiting.append(before[place + earlier])
            chosen = int(draw * len(waiting))
            order[place] = waiting[chosen]
            waiting[chosen] = waiting[-1]
            waiting.pop()
        return order
