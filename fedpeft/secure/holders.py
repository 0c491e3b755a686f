"""Who holds the shares of a client's secrets: a random subset of the clients of a round.

A client draws a seed after it has seen the clients of the round, and signs it with its key of the
round. Everyone derives the subset from it. A client draws once for a round number, so that a server
cannot ask until a subset suits it.

The other clients are ordered by random numbers of 32 bits, and equal ones by their place; the
first k - 1 of them hold shares, at the points 1 to k - 1. The owner itself has the point k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedpeft.secure import keys, ring


def holders(seed: bytes, clients: Sequence[int], owner: int, count: int) -> list[int]:
    """Return the ``count`` holders of an owner's shares; the one in place p has point p + 1.

    Args:
        seed: the owner's.
        clients: of the round.
        owner: one of them, the last holder.
        count: k, at most all clients.
    """
    numbers = np.delete(_numbers(seed, len(clients))[0], clients.index(owner))
    others = np.argsort(numbers, kind="stable")
    without = [client for client in clients if client != owner]
    return [*(without[place] for place in others[: count - 1]), owner]


def points(
    seeds: Mapping[int, bytes], clients: Sequence[int], holder: int, count: int
) -> dict[int, int]:
    """Return the points of the shares that a client holds, by their owner, itself included.

    Args:
        seeds: of the owners, in order.
        clients: of the round.
        holder: one of them.
        count: k, as in ``holders``.
    """
    numbers = _numbers(b"".join(seeds.values()), len(clients))  # [owners, clients]
    column, places = clients.index(holder), {client: place for place, client in enumerate(clients)}
    its = numbers[:, column : column + 1]
    smaller = numbers < its
    smaller[:, :column] |= numbers[:, :column] == its
    # An owner is not among its other holders.
    own = smaller[np.arange(len(seeds)), [places[owner] for owner in seeds]]
    ranks = smaller.sum(axis=1) - own
    held = {owner: int(rank) + 1 for owner, rank in zip(seeds, ranks, strict=True)}
    return {
        owner: count if owner == holder else point
        for owner, point in held.items()
        if owner == holder or point < count
    }


@lru_cache(maxsize=2)  # clients of one process see the same seeds
def _numbers(seeds: bytes, clients: int) -> np.ndarray:
    """Return random numbers [owners, clients] of the owners' joined seeds."""
    size = keys.SEED_BYTES
    each = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    drawn = (ring.octets(keys.derived(seed, "holders"), 4 * clients) for seed in each)
    return np.frombuffer(b"".join(drawn), "<u4").reshape(-1, clients)
