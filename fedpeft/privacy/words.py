"""Privacy statements of a result (``fedpeft.privacy.statement``) as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeft.readable import readable_epsilon

_LARGE_DELTA = 0.01  # one person in a hundred may be exposed completely


def privacy_line(statement: Mapping[str, Any]) -> str:
    """Return a privacy statement of result.json as text."""
    unit, epsilon, delta = (statement[key] for key in ("unit", "epsilon", "delta"))
    if epsilon is None:
        return f"no privacy for any {unit}: some of it ran without noise"
    runs = [
        f"{steps:,} step{'s' * (steps != 1)} with noise multiplier {sigma:.4g} and q {rate:.4g}"
        for sigma, rate, steps in statement["composition"]
    ]
    warnings = f"; a delta of {delta:.2g} promises little" if delta > _LARGE_DELTA else ""
    if not statement["releasable"]:
        warnings += "; NOT for release: the noise can be drawn again"
    return (
        f"({readable_epsilon(epsilon)}, {delta:.2g})-DP for every {unit} "
        f"({statement['neighbouring']}): {statement['mechanism']}, {' and '.join(runs)}, "
        f"{statement['accountant'].upper()} accountant{warnings}"
    )


def privacy_words(privacy: Mapping[str, Any] | None) -> list[str]:
    """Return sentences about what a result promises to whom, for readers who know no formula.

    Args:
        privacy: entry ``privacy`` of result.json, unit -> statement; None without privacy.
    """
    statements = [statement for statement in (privacy or {}).values() if statement]
    if not statements:
        return [
            "No differential privacy: the updates and the task vector may reveal training examples."
        ]
    return [sentence for statement in statements for sentence in _words(statement)]


def _words(statement: Mapping[str, Any]) -> list[str]:
    unit, epsilon, delta = statement["unit"], statement["epsilon"], statement["delta"]
    if epsilon is None:
        return [f"No privacy for any {unit}: some training ran without noise."]
    lines = [
        f"Each {unit} is protected by ({readable_epsilon(epsilon)}, {delta:.2g})-differential "
        f"privacy: up to a probability of {delta:.2g}, one {unit} more or less changes the "
        f"probability of any outcome by at most a factor of e^{readable_epsilon(epsilon)}. "
        f"Compared data sets: {statement['neighbouring']}.",
        f"Mechanism: {statement['mechanism']}; clipping {statement['clipping']} at "
        f"{statement['clip']:.4g}, noise multiplier {statement['noise_multiplier']:.4g}, "
        f"{statement['steps']:,} steps, {statement['accountant'].upper()} accountant.",
    ]
    if delta > _LARGE_DELTA:
        lines.append(f"A delta of {delta:.2g} promises little.")
    if not statement["releasable"]:
        lines.append("Not for release: the noise can be drawn again.")
    return lines
