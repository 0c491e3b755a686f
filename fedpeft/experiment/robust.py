"""Clients that robust strategies need, and malicious clients that they tolerate."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from fedpeft.experiment.federation import SERVER_LR, FederationSection, Strategy
from fedpeft.experiment.sizes import share_of

#: Strategies that select, trim or clip updates; all others average them.
ROBUST: tuple[Strategy, ...] = (
    "fedmedian",
    "fedtrimmedavg",
    "geometric_median",
    "centered_clipping",
    "krum",
    "multikrum",
    "bulyan",
)
#: Updates that a strategy needs with f malicious clients: a f + b, see the papers in
#: ``server/robust.py``.
_NEEDS = {"krum": (2, 3), "multikrum": (2, 3), "bulyan": (4, 3)}


def needed(federation: FederationSection) -> int:
    """Return how many valid updates a round needs at least."""
    return max(needed_by_rule(federation), federation.min_success)


def needed_by_rule(federation: FederationSection) -> int:
    """Return how many updates, or means of buckets under masks, the strategy needs at least."""
    factor, more = _NEEDS.get(federation.strategy, (0, 1))
    count = factor * federation.byzantine + more
    if federation.mixing == "bucketing":
        count = (count - 1) * federation.bucket + 1  # so many buckets
    if federation.mixing == "nnm":
        count = max(count, 2 * federation.byzantine + 1)
    return count


def tolerated(federation: FederationSection, clients: int) -> int:
    """Return how many malicious clients of ``clients`` in a round the strategy tolerates."""
    strategy, mixed = federation.strategy, clients
    if federation.mixing == "bucketing":
        mixed = ceil(clients / federation.bucket)
    if strategy in _NEEDS or federation.mixing == "nnm":
        return federation.byzantine
    if strategy == "fedtrimmedavg":
        return trimmed(federation, mixed)
    return (mixed - 1) // 2 if strategy in ROBUST else 0


def trimmed(federation: FederationSection, updates: int) -> int:
    """Return how many of ``updates`` numbers "fedtrimmedavg" drops at either end."""
    return int(share_of(federation.trim, updates))


def unset(federation: FederationSection) -> str:
    """Return a line if a strategy tolerates nobody until ``byzantine`` is set, else ""."""
    if federation.byzantine or (federation.strategy not in _NEEDS and federation.mixing != "nnm"):
        return ""
    name = "nnm" if federation.mixing == "nnm" else federation.strategy
    return (
        f"warning: federation.byzantine = 0, so {name} tolerates no malicious client; set it to "
        f"the number per round that it should tolerate"
    )


def in_robust(federation: FederationSection, sampled: int, what: str = "clients") -> Iterator[str]:
    """Yield one line per contradiction, with ``sampled`` clients per round, or sums of clients."""
    strategy, mixing, malicious = federation.strategy, federation.mixing, federation.byzantine
    mixed = ceil(sampled / federation.bucket) if mixing == "bucketing" else sampled
    if sampled < (least := needed(federation)) > federation.min_success:
        with_mixing = f" after {mixing}" if mixing != "none" else ""
        yield (
            f"federation.byzantine = {malicious}: {strategy}{with_mixing} needs {least} {what} "
            f"per round, got {sampled}"
        )
    if malicious and strategy not in _NEEDS and mixing != "nnm":
        yield (
            f"federation.byzantine = {malicious}: strategy '{strategy}' does not use it; leave it "
            f"out"
        )
    if strategy == "fedtrimmedavg" and trimmed(federation, mixed) < 1:
        yield f"federation.trim = {federation.trim}: drops none of {mixed} updates per round"
    if strategy not in ROBUST and mixing != "none":
        yield (
            f"federation.mixing = '{mixing}': prepares updates for robust strategies; expected "
            f"federation.strategy = one of {', '.join(ROBUST)}, not '{strategy}'"
        )
    if strategy in ROBUST and federation.weighting != "uniform":
        yield (
            f"federation.weighting = '{federation.weighting}': strategy '{strategy}' counts all "
            f"clients alike; leave it at 'uniform'"
        )
    if federation.server_lr is not None and strategy not in SERVER_LR:
        yield (
            f"federation.server_lr = {federation.server_lr}: strategy '{strategy}' does "
            f"not use it; leave it out"
        )
