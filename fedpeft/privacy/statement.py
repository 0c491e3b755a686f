"""What a result says about privacy: everything somebody needs to check the number.

Each unit that is protected has one statement, a dictionary with the same keys everywhere.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from fedpeft.privacy.accounting import Spent
from fedpeft.privacy.ledgerfile import Charge, Unit

_NUMBERS = ("sampling_rate", "clip", "noise_multiplier", "steps", "delta", "epsilon_error")
_WORDS = ("mechanism", "unit", "neighbouring", "sampling", "clipping", "accountant")
_LONGEST = 200  # characters of a word

_MECHANISMS = {
    ("example", "Poisson"): "DP-SGD (Abadi et al. 2016): Poisson-subsampled Gaussian",
    ("client", "Poisson"): "DP-FedAvg (McMahan et al. 2018): Poisson-subsampled Gaussian",
    ("client", "none"): "local DP: a Gaussian of its own on each client's update, of noise "
    "multiplier times 2 clip, the most that two updates differ by",
}
_NEIGHBOURING = {
    ("example", "Poisson"): "add or remove one example",
    ("client", "Poisson"): "add or remove one client with all its examples",
    ("client", "none"): "replace all examples of one client by as many others",
}


def statement(
    charges: Sequence[Charge],
    spent: Spent,
    clip: float,
    clipping: str,
    sampling: Literal["Poisson", "none"] = "Poisson",
) -> dict[str, Any]:
    """Return a statement.

    ``noise_multiplier`` and ``sampling_rate`` are those of the last charge, ``steps`` all steps so
    far, and ``composition`` lists what epsilon is composed of: [multiplier, rate, steps].

    Args:
        charges: those of one unit in a ledger, at least one.
        spent: what they cost together; infinite is told as null.
        clip: the L2 norm clipped to.
        clipping: in what way.
        sampling: "none" = every round uses everything.
    """
    last, unit = charges[-1].mechanism, charges[-1].unit
    bounded = math.isfinite(spent.epsilon)
    steps: Counter[tuple[float, float]] = Counter()
    for each in (charge.mechanism for charge in charges):
        steps[each.noise_multiplier, each.sampling_rate] += each.steps
    return {
        "mechanism": _MECHANISMS[unit, sampling],
        "unit": unit,
        "neighbouring": _NEIGHBOURING[unit, sampling],
        "sampling": sampling,
        "sampling_rate": last.sampling_rate,
        "clipping": clipping,
        "clip": clip,
        "noise_multiplier": last.noise_multiplier,
        "steps": sum(steps.values()),
        "composition": [[sigma, rate, count] for (sigma, rate), count in steps.items()],
        "delta": spent.delta,
        "epsilon": spent.epsilon if bounded else None,
        "epsilon_error": spent.epsilon_error if bounded else None,
        "accountant": spent.accountant,
        # Whoever knows the seed takes reproducible noise off again, also that of earlier charges.
        "releasable": bounded and all(charge.draw is None for charge in charges),
    }


def read_statement(text: str, unit: str) -> dict[str, Any]:
    """Return the statement of a unit in a client's reply; nothing in it is trusted.

    Raises:
        ValueError: it has not exactly a statement's keys, or a value that cannot be.
    """
    found = json.loads(text)
    keys = {*_NUMBERS, *_WORDS, "epsilon", "releasable", "composition"}
    if not isinstance(found, Mapping) or set(found) != keys or found["unit"] != unit:
        raise ValueError("the privacy statement has not the keys of one")
    unbounded = found["epsilon"] is None
    for key in (*_NUMBERS, "epsilon"):
        value = found[key]
        if unbounded and value is None and key.startswith("epsilon"):
            continue
        if not _is_number(value) or (key in ("delta", "sampling_rate") and value > 1):
            raise ValueError(f"{key} of the privacy statement cannot be")
    if not all(_is_word(found[key]) for key in _WORDS):
        raise ValueError("a word of the privacy statement is none")
    if type(found["releasable"]) is not bool or (found["releasable"] and unbounded):
        raise ValueError("the privacy statement would be released without an epsilon")
    runs = found["composition"]
    if not isinstance(runs, list) or not all(
        isinstance(run, list) and len(run) == 3 and all(map(_is_number, run)) for run in runs
    ):
        raise ValueError("the composition of the privacy statement cannot be")
    return dict(found)


def _is_word(value: object) -> bool:
    """Words are shown on terminals."""
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e15  # type: ignore[operator]


def so_far(before: dict[str, Any] | None, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return ``{"epsilon", "privacy"}`` of a run: each unit's statement of the largest epsilon.

    It has the largest delta of all, too: (e_i, d_i)-DP is (max e_i, max d_i)-DP for every client.
    ``epsilon`` is that of examples, or of clients where only they are protected.

    Args:
        before: the same of the rounds before, None before the first.
        said: the statements of this round.
    """
    kept = (before or {}).get("privacy") or {}
    known = [*(kept[unit] for unit in kept if kept[unit]), *said]
    if not known:
        return {"epsilon": None, "privacy": None}
    units = {unit: _worst([s for s in known if s["unit"] == unit]) for unit in get_args(Unit)}
    first = units["example"] or units["client"]
    return {"epsilon": first and first["epsilon"], "privacy": units}


def _worst(statements: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the statement of the largest epsilon, releasable only if all are; None of none."""
    if not statements:
        return None

    def epsilon(said: dict[str, Any]) -> float:
        return math.inf if said["epsilon"] is None else said["epsilon"]

    # Of equal ones the last: it has the most steps.
    largest: dict[str, Any] = max(reversed(statements), key=epsilon)
    return {
        **largest,
        "delta": max(said["delta"] for said in statements),
        "releasable": all(said["releasable"] for said in statements),
    }
