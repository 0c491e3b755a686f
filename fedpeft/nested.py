"""Nested z: some clients of a run hold only the first numbers of z.

The z of such a client is a prefix of the run's z, scaled and projected as in the whole. The other
numbers stay at their initial values there, which follow from the seed, so only the prefix and the
head travel. The server averages each number over the clients that hold it
(``server/aggregation/nested.py``).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.parameters import TaskParameters
from fedpeft.randomness import generator

Z = "z"  # the parameter that may be nested


def is_small(experiment: Experiment, client: int) -> bool:
    """Return whether a client holds only a prefix of z."""
    nested, clients = experiment.nested, experiment.federation.clients
    return bool(nested.d) and client in _small_clients(experiment.seed, clients, nested.share)


def absent(parameters: TaskParameters, experiment: Experiment) -> np.ndarray:
    """Return a mask of the numbers that clients with a prefix of z do not hold, bool [P].

    Raises:
        UserError: the method has no z, z is not shared, or it is no longer than the prefix.
    """
    d, places = experiment.nested.d, parameters.layout.places([Z])
    if not places.any() or (places & parameters.personal).any():
        raise UserError(
            f"nested.d = {d}: expected a method with a shared vector z (slash, jr_warp), got "
            f"'{experiment.method.name}'"
        )
    if places.sum() <= d:
        raise UserError(f"nested.d = {d}: expected less than method.d = {places.sum()}")
    return places & (np.cumsum(places) > d)


def held_numbers(
    parameters: TaskParameters, experiment: Experiment, small: bool
) -> np.ndarray | slice:
    """Return the places of the shared numbers [S] that a client holds.

    Args:
        parameters: those of the experiment.
        experiment: all settings.
        small: whether the client holds only a prefix of z, see ``is_small``.
    """
    if not small:
        return slice(None)
    return ~absent(parameters, experiment)[~parameters.personal]


def fixed_numbers(
    parameters: TaskParameters, experiment: Experiment, clients: list[int]
) -> np.ndarray | None:
    """Return a mask of the numbers that stay as they are at each of K clients, bool [K, P].

    None if there are no such numbers.
    """
    small = np.array([is_small(experiment, client) for client in clients])
    return small[:, None] & absent(parameters, experiment) if small.any() else None


@lru_cache(maxsize=16)
def _small_clients(seed: int, clients: int, share: float) -> frozenset[int]:
    order = generator(seed, "nested").permutation(clients)
    return frozenset(order[: round(share * clients)].tolist())
